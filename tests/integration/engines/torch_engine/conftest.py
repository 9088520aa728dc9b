from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from polar.engines.base import EngineInfo
from polar.engines.torch.engine import TorchEngine, TorchOptions
from polar.tokens.renderers.gguf_vocabulary import Vocabulary

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
CONTEXT_TOKENS = 512


class StartedTorch(NamedTuple):
    engine: TorchEngine
    info: EngineInfo


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, vocabulary: Vocabulary) -> Path:
    """A small model with random weights, which knows the ids of the default model's vocabulary."""
    from tiny_llama import saved

    return saved(tmp_path_factory.mktemp("weights") / "tiny", vocabulary=49152)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started(tiny_model: Path) -> AsyncIterator[StartedTorch]:
    options = TorchOptions(model=str(tiny_model), context_tokens=CONTEXT_TOKENS, parallel=2, threads=1)
    engine = TorchEngine(options)
    yield StartedTorch(engine, await engine.start())
    await engine.stop()
