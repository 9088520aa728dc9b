"""The engine we ship for tests keeps the same contract as the real ones."""

from __future__ import annotations

import pytest

from contracts.engine_contract import EngineContract, ask, whole
from polar.engines.base import EngineInfo
from polar.errors import EngineError
from polar.testing import ScriptedEngine
from polar.tokens.renderers.gguf_vocabulary import Vocabulary

INFO = EngineInfo("scripted", "script", context_tokens=512, logprob_mode="raw", parallel=4)


class TestScriptedEngine(EngineContract):
    @pytest.fixture
    async def started(self, vocabulary: Vocabulary) -> tuple[ScriptedEngine, EngineInfo]:
        text = "The quick brown fox jumps over the lazy dog."
        engine = ScriptedEngine(vocabulary, lambda turn, prompt: text, strict=False, info=INFO)
        return engine, await engine.start()

    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return vocabulary.encode("Tell me a story.")

    async def test_a_stopped_engine_says_so(self, engine: ScriptedEngine, prompt: list[int]) -> None:
        await engine.stop()
        await engine.stop()
        with pytest.raises(EngineError, match="start it first"):
            await whole(engine, ask(prompt))
