"""The llamacpp engine with a real llama-server, as an operator would run one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from running_llama import CONTEXT_TOKENS, LlamaServer

from contracts.engine_contract import EngineContract, SchemaContract, ask, whole
from polar.engines.base import EngineInfo, Scorer
from polar.engines.llamacpp.engine import LlamaCppEngine, LlamaCppOptions
from polar.errors import EngineError
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import token_ids

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="session")
def key_file(server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "llama"
    path.write_text(server.api_key + "\n")
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def started(server: LlamaServer, key_file: Path) -> AsyncIterator[tuple[LlamaCppEngine, EngineInfo]]:
    engine = LlamaCppEngine(LlamaCppOptions(url=server.address, api_key_file=key_file))
    yield engine, await engine.start()
    await engine.stop()


class TestLlamaCppEngine(EngineContract, SchemaContract):
    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return vocabulary.encode_layout("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n")

    async def test_the_server_says_what_it_is(self, info: EngineInfo, gguf: Path) -> None:
        assert (info.name, info.model, info.logprob_mode) == ("llamacpp", gguf.name, "raw")
        assert (info.context_tokens, info.parallel) == (CONTEXT_TOKENS, 2)
        assert info.version

    async def test_sampled_logprobs_are_the_scores(
        self, engine: LlamaCppEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        assert isinstance(engine, Scorer)
        start = [*prompt, *vocabulary.encode("Hello 🎉")]
        piece = await whole(engine, ask(start, "scored", max_tokens=12, temperature=1.5))
        ids = token_ids([*start, *piece.ids])
        scored = await engine.score(ids, range(len(start), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-3)

    async def test_scores_come_in_the_order_they_are_asked_for(
        self, engine: LlamaCppEngine, prompt: list[int]
    ) -> None:
        ids = token_ids(prompt)
        ordered = await engine.score(ids, [2, 5, 9])
        mixed = await engine.score(ids, [9, 2, 5, 9])
        wanted = [ordered[2], ordered[0], ordered[1], ordered[2]]
        assert mixed.tolist() == pytest.approx(wanted, abs=1e-3)
        assert max(ordered) < 0

    async def test_an_engine_starts_once(self, engine: LlamaCppEngine) -> None:
        with pytest.raises(EngineError, match="already started"):
            await engine.start()


async def test_counters_outlive_the_engine(server: LlamaServer, key_file: Path) -> None:
    engine = LlamaCppEngine(LlamaCppOptions(url=f"{server.address}/", api_key_file=key_file))
    await engine.start()
    await engine.stop()
    assert engine.counters()["calls"] > 0
    with pytest.raises(EngineError, match="not running; start it first"):
        await whole(engine, ask([1]))


async def test_a_wrong_key_is_reported(server: LlamaServer) -> None:
    engine = LlamaCppEngine(LlamaCppOptions(url=server.address))
    with pytest.raises(EngineError, match=r"answered .* with 401.*api_key_env"):
        await engine.start()


async def test_an_unreachable_server_is_reported() -> None:
    engine = LlamaCppEngine(LlamaCppOptions(url="http://127.0.0.1:9"))
    with pytest.raises(
        EngineError, match=r"no connection to llama.cpp at http://127.0.0.1:9.*check that the server"
    ):
        await engine.start()
