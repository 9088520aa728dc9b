"""The engine of `polar train`: released if it was left held, and named with its exit code when it dies."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest

from polar.cli.service.train_service import release_held, training_engine
from polar.config import Config
from polar.engines.torch import engine as torch_engine
from polar.errors import EngineError
from polar.trainers.weights import WeightError
from polar.trainers.weights.vllm import TorchTarget
from polar.types import Spec


class FakeSampler:
    """The child process. It does not answer any more."""

    exited = False
    stopped = False

    @classmethod
    async def spawn(cls) -> Self:
        return cls()

    async def ready(self, _: Any) -> str:
        return "http://127.0.0.1:1"

    async def ended_within(self, _: float) -> bool:
        return self.exited

    def status_and_log(self) -> str:
        return "it ended with code -9; its log ends with: (nothing)"

    async def stop(self) -> None:
        type(self).stopped = True


@pytest.mark.parametrize(
    ("exited", "said"),
    [(True, "the torch engine died: it ended with code -9"), (False, r"no answer.*`url`")],
)
async def test_a_sampler_that_died_is_named_with_its_exit_code(
    exited: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_engine, "PACKAGES", ())
    monkeypatch.setattr(torch_engine, "TorchProcess", FakeSampler)
    monkeypatch.setattr(FakeSampler, "exited", exited)
    monkeypatch.setattr(FakeSampler, "stopped", False)
    monkeypatch.setenv(torch_engine.KEY_VARIABLE, "")
    with pytest.raises((EngineError, WeightError), match=said):
        async with training_engine(Config(engine=Spec(name="torch")), "/a/model"):
            raise WeightError("no answer; check `url`")
    assert FakeSampler.stopped


@pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra `train`")
@pytest.mark.parametrize("fails", [False, True])
async def test_an_engine_that_was_left_held_is_released_before_nodes_start(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be reached is for the nodes to report."""
    seen: list[str] = []

    async def release(_: TorchTarget) -> None:
        seen.append("release")
        if fails:
            raise WeightError("no answer")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(TorchTarget, "release", release)
    await release_held(Spec(name="torch", options={"url": "http://127.0.0.1:1"}), str(tmp_path))
    assert seen == ["release"]
