from __future__ import annotations

import subprocess
import sys

import pytest

from polar.engines.torch import engine as torch_engine
from polar.engines.torch.engine import TorchEngine, TorchOptions
from polar.errors import ConfigError, EngineError
from polar.registry import make
from polar.types import Spec


def test_it_is_made_by_its_name() -> None:
    engine = make("engine", Spec(name="torch", options={"parallel": 16, "dtype": "bfloat16"}))
    assert isinstance(engine, TorchEngine)
    with pytest.raises(ConfigError, match="dtype"):
        make("engine", Spec(name="torch", options={"dtype": "int4"}))


async def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_engine, "PACKAGES", ("no_such_torch",))
    with pytest.raises(EngineError, match=r"needs no_such_torch: pip install 'polar-rollout\[torch\]'"):
        await TorchEngine(TorchOptions()).start()


def test_a_node_that_uses_it_does_not_import_torch() -> None:
    program = "import sys, polar.engines.torch.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
