"""The vLLM engine with a real vLLM on the processor: the whole contract on both of its routes, and what only a
real server shows: that streamed logprobs are those of the model in the context that was sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from vllm_server import VllmServer, converted, installed

from contracts.engine_contract import EngineContract, SchemaContract, ask, whole
from polar.engines.base import EngineInfo, Scorer
from polar.engines.pieces import joined
from polar.engines.vllm.engine import VllmEngine, VllmOptions
from polar.engines.vllm.protocol import COMPLETIONS, GENERATE
from polar.errors import EngineError
from polar.store.weights import default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary
from polar.types import token_ids

pytestmark = [pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="session")]

CONTEXT_TOKENS = 768
BLOCK_TOKENS = 128
"""vLLM's cache on a processor holds prompts in whole blocks of so many tokens."""
KEY = "a-key-of-the-tests"


@pytest.fixture(scope="session")
def gguf() -> Path:
    return asyncio.run(default_weights())


@pytest.fixture(scope="session")
def vocabulary(gguf: Path) -> Vocabulary:
    return load_vocabulary(gguf)


@pytest.fixture(scope="session")
def prompt(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.encode_layout("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmServer]:
    environment = await asyncio.to_thread(installed)
    weights = await asyncio.to_thread(converted, environment, gguf)
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    running = await VllmServer.spawn(
        environment, weights, log, "--enable-scale-out", context_tokens=CONTEXT_TOKENS
    )
    yield running
    await running.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["generate", "completions"])
async def started(
    server: VllmServer, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[VllmEngine, EngineInfo]]:
    engine = VllmEngine(VllmOptions(url=server.url, route=request.param, parallel=4))
    yield engine, await engine.start()
    await engine.stop()


class TestVllmEngine(EngineContract, SchemaContract):
    async def test_a_second_turn_evaluates_only_what_is_new(
        self, engine: VllmEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        long_prompt = [*prompt, *vocabulary.encode("one two three four five " * 80)]
        first = await whole(engine, ask(long_prompt, "turns", max_tokens=4, temperature=0))
        new_ids = vocabulary.encode("and then")
        before = engine.counters()["evaluated_tokens"]
        second = await whole(engine, ask([*long_prompt, *first.ids, *new_ids], "turns", max_tokens=4))
        assert len(long_prompt) > 3 * BLOCK_TOKENS
        assert second.evaluated_tokens is not None
        assert second.evaluated_tokens <= len(new_ids) + BLOCK_TOKENS
        assert engine.counters()["evaluated_tokens"] - before == second.evaluated_tokens

    async def test_the_server_says_what_it_is(self, info: EngineInfo) -> None:
        assert (info.name, info.version) == ("vllm", "0.32.0")
        assert info.model.startswith("smollm2 (")
        assert (info.context_tokens, info.logprob_mode) == (CONTEXT_TOKENS - 1, "raw")

    async def test_streamed_logprobs_are_the_scores(
        self, engine: VllmEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        assert isinstance(engine, Scorer)
        emoji = [*prompt, *vocabulary.encode("😀 你好世界 🎉🎉")]
        for start, temperature in ((prompt, 1.0), (emoji, 0.0), (prompt, 2.0)):
            piece = await whole(engine, ask(start, "scored", max_tokens=60, temperature=temperature))
            ids = token_ids([*start, *piece.ids])
            scored = await engine.score(ids, range(len(start), len(ids)))
            assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-3)

    async def test_only_the_positions_asked_for_are_scored(self, engine: VllmEngine, prompt: list[int]) -> None:
        ids = token_ids(prompt)
        every = await engine.score(ids, range(1, len(ids)))
        assert not any(map(math.isnan, every))
        some = await engine.score(ids, [5, 2])
        assert some.tolist() == pytest.approx([every[4], every[1]], abs=1e-4)

    async def test_logprobs_under_a_schema_are_the_models_own(
        self, engine: VllmEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        request = ask(prompt, "forced", max_tokens=20, json_schema={"const": "🎉 no"})
        piece = await whole(engine, request)
        assert vocabulary.decode(piece.ids).startswith('"🎉 no"')
        streamed = await joined(engine._sample(engine._running(), request, max_tokens=20))
        assert streamed.ids == piece.ids
        ids = token_ids([*prompt, *piece.ids])
        unheld = await engine.score(ids, range(len(prompt), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(unheld.tolist(), abs=1e-3)
        assert min(piece.logprobs) < -3, "the schema has chosen what the model would not"
        assert min(streamed.logprobs) > min(piece.logprobs) + 1, "vLLM's own are among the choices left"

    async def test_the_models_own_end_token_is_sampled_with_its_logprob(
        self, engine: VllmEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        piece = await whole(engine, ask(prompt, "eos", max_tokens=90, temperature=0))
        assert piece.finish_reason == "stop"
        assert piece.ids[-1] == vocabulary.control("<|im_end|>")
        assert -5 < piece.logprobs[-1] < 0

    async def test_a_full_context_ends_a_reply_as_length_and_can_be_scored(
        self, engine: VllmEngine, info: EngineInfo, vocabulary: Vocabulary
    ) -> None:
        prompt = (vocabulary.encode("1, 2, 3,") * CONTEXT_TOKENS)[: info.context_tokens - 10]
        piece = await whole(engine, ask(prompt, "full", max_tokens=2000, temperature=0))
        assert (len(piece.ids), piece.finish_reason) == (10, "length")
        ids = token_ids([*prompt, *piece.ids])
        scored = await engine.score(ids, range(len(prompt), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-3)

    async def test_closing_the_iterator_stops_the_generation_in_the_server(
        self, engine: VllmEngine, server: VllmServer, vocabulary: Vocabulary
    ) -> None:
        pieces = engine.generate(ask(vocabulary.encode("1, 2, 3,"), "closed", max_tokens=700, temperature=0))
        await anext(pieces)
        assert await running_requests(server) == 1
        before = await sampled_tokens(server)
        await pieces.aclose()
        while await running_requests(server):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert await sampled_tokens(server) - before < 600

    async def test_without_a_seed_replies_differ(self, engine: VllmEngine, prompt: list[int]) -> None:
        asked = [ask(prompt, "unseeded", max_tokens=12, temperature=1.5, seed=None) for _ in range(2)]
        one, other = [await whole(engine, request) for request in asked]
        assert one.ids != other.ids

    async def test_ids_outside_the_vocabulary_are_refused(self, engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match=r"400.*out of vocabulary"):
            await whole(engine, ask([10_000_000]))


async def test_a_reply_carries_the_version_of_its_weights(server: VllmServer, prompt: list[int]) -> None:
    engine = VllmEngine(VllmOptions(url=server.url))
    await engine.start()
    assert engine._route == GENERATE
    versions = []
    for name in (None, "step-7"):
        if name:
            await post(server, "/update_weight_version", {"new_version": name})
        pieces = [piece async for piece in engine.generate(ask(prompt, max_tokens=2))]
        versions.append(pieces[-1].policy_version)
    await engine.stop()
    assert versions == ["", "step-7"]


async def test_a_server_with_other_settings_is_measured(
    gguf: Path, prompt: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with a key, without the route for tokens, and with logprobs of the distribution sampled from."""
    environment = await asyncio.to_thread(installed)
    weights = await asyncio.to_thread(converted, environment, gguf)
    flags = ("--logprobs-mode", "processed_logprobs", "--api-key", KEY)
    server = await VllmServer.spawn(environment, weights, tmp_path / "log", *flags, context_tokens=256)
    try:
        with pytest.raises(EngineError, match=r"401.*api_key_env"):
            await VllmEngine(VllmOptions(url=server.url)).start()
        monkeypatch.setenv("POLAR_TEST_KEY", KEY)
        options = VllmOptions(url=server.url, api_key_env="POLAR_TEST_KEY")
        engine = VllmEngine(options)
        info = await engine.start()
        assert (info.logprob_mode, engine._route) == ("processed", COMPLETIONS)
        plain = await whole(engine, ask(prompt, max_tokens=20))
        ids = token_ids([*prompt, *plain.ids])
        scored = await engine.score(ids, range(len(prompt), len(ids)))
        assert plain.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-3)
        await engine.stop()
        with pytest.raises(EngineError, match=r"gives processed logprobs.*says raw"):
            await VllmEngine(options.model_copy(update={"logprob_mode": "raw"})).start()
        with pytest.raises(EngineError, match="start it with --enable-scale-out"):
            await VllmEngine(options.model_copy(update={"route": "generate"})).start()
    finally:
        await server.stop()


async def running_requests(server: VllmServer) -> float:
    return await metric(server, "vllm:num_requests_running")


async def sampled_tokens(server: VllmServer) -> float:
    return await metric(server, "vllm:generation_tokens_total")


async def metric(server: VllmServer, name: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


async def post(server: VllmServer, path: str, body: dict[str, str]) -> None:
    async with aiohttp.ClientSession() as http, http.post(server.url + path, json=body) as response:
        assert response.status == 200, await response.text()
