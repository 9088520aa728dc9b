"""The SGLang engine by contract: against a server written from SGLang's shapes, because a real one needs a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake_sglang import CONTEXT_TOKENS, FakeSglang
from running_llama import Connect
from toy_model import ToyModel

from contracts.engine_contract import EngineContract, SchemaContract, ask, whole
from polar.engines.base import EngineInfo, Scorer
from polar.engines.sglang.engine import SglangEngine
from polar.errors import EngineError
from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Spec, token_ids
from waiting import HANG_S, hang_limit

Opener = Callable[..., Awaitable[tuple[SglangEngine, EngineInfo]]]


@pytest.fixture
def opened(connect: Connect) -> Opener:
    """A started engine in front of a fake server."""

    async def open_engine(fake: FakeSglang, **options: Any) -> tuple[SglangEngine, EngineInfo]:
        engine = await connect("sglang", fake.app(), **options)
        return engine, await engine.start()

    return open_engine


@pytest.fixture
def fake(vocabulary: Vocabulary) -> FakeSglang:
    return FakeSglang(vocabulary)


@pytest.mark.parametrize("fake_options", [{}, {"incremental": True, "processed": False}], ids=["whole", "deltas"])
class TestSglangEngine(EngineContract, SchemaContract):
    @pytest.fixture
    def fake(self, vocabulary: Vocabulary, fake_options: dict[str, Any]) -> FakeSglang:
        return FakeSglang(vocabulary, **fake_options)

    @pytest.fixture
    async def started(self, fake: FakeSglang, opened: Opener) -> tuple[SglangEngine, EngineInfo]:
        return await opened(fake)

    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return vocabulary.encode("Say hi to the toy model.")

    async def test_the_server_says_what_it_is(self, info: EngineInfo, fake: FakeSglang) -> None:
        mode = "processed" if fake.processed else "raw"
        assert (info.name, info.model, info.version) == ("sglang", "/weights/toy", "0.5.23")
        assert (info.context_tokens, info.parallel, info.logprob_mode) == (CONTEXT_TOKENS - 1, 3, mode)

    async def test_streamed_logprobs_are_the_scores(self, engine: SglangEngine, prompt: list[int]) -> None:
        assert isinstance(engine, Scorer)
        piece = await whole(engine, ask(prompt, max_tokens=20))
        ids = token_ids([*prompt, *piece.ids])
        scored = await engine.score(ids, range(len(prompt), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-5)

    async def test_logprobs_under_a_schema_are_the_models_own(
        self, engine: SglangEngine, fake: FakeSglang, prompt: list[int]
    ) -> None:
        piece = await whole(engine, ask(prompt, max_tokens=40, json_schema={"const": {"a": 1}}))
        ids = [*prompt, *piece.ids]
        wanted = [fake.model.logprob(ids[:n], ids[n]) for n in range(len(prompt), len(ids))]
        assert piece.logprobs.tolist() == pytest.approx(wanted, abs=1e-4)
        assert max(piece.logprobs) < -1


async def test_every_sampling_value_is_sent(fake: FakeSglang, opened: Opener) -> None:
    engine, _ = await opened(fake)
    await whole(engine, ask([500, 501], "a-session", max_tokens=3, temperature=0.5, top_p=0.9, stop_ids=(7,)))
    body, headers = fake.bodies[-1], fake.headers[-1]
    knobs = body["sampling_params"]
    assert (body["input_ids"], body["return_logprob"], body["logprob_start_len"]) == ([500, 501], True, -1)
    assert (knobs["temperature"], knobs["top_p"], knobs["top_k"], knobs["min_p"]) == (0.5, 0.9, -1, 0.0)
    assert (knobs["max_new_tokens"], knobs["stop_token_ids"], knobs["repetition_penalty"]) == (3, [7], 1.0)
    assert (knobs["no_stop_trim"], knobs["skip_special_tokens"]) == (True, False)
    assert headers["x-smg-routing-key"] == "a-session"


async def test_scoring_starts_one_before_the_first_position(fake: FakeSglang, opened: Opener) -> None:
    engine, _ = await opened(fake)
    ids = token_ids([500, 501, 502, 503, 504])
    scored = await engine.score(ids, [4, 2])
    assert fake.bodies[-1]["logprob_start_len"] == 1
    model = ToyModel()
    wanted = [model.logprob(ids[:4], 504), model.logprob(ids[:2], 502)]
    assert scored.tolist() == pytest.approx(wanted, abs=1e-5)


async def test_closing_the_iterator_aborts_the_request(fake: FakeSglang, opened: Opener) -> None:
    fake.step_s = 0.01
    engine, _ = await opened(fake)
    pieces = engine.generate(ask([500, 501], max_tokens=500))
    await anext(pieces)
    await pieces.aclose()
    assert fake.aborted == [fake.bodies[-1]["rid"]]


async def test_a_cancelled_task_aborts_the_request(fake: FakeSglang, opened: Opener) -> None:
    fake.step_s = 0.01
    engine, _ = await opened(fake)
    asked = len(fake.bodies)
    task = asyncio.create_task(whole(engine, ask([500, 501], max_tokens=500)))
    while len(fake.bodies) == asked:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert fake.aborted == [fake.bodies[-1]["rid"]]


async def test_leaving_a_reply_does_not_wait_for_a_server_that_hangs(
    vocabulary: Vocabulary, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polar.engines.sglang.engine.ABORT_TIMEOUT_S", 2.0)
    fake = FakeSglang(vocabulary, step_s=0.01, abort_s=2 * HANG_S)
    engine, _ = await opened(fake)
    pieces = engine.generate(ask([500, 501], max_tokens=500))
    await anext(pieces)
    async with hang_limit():
        await pieces.aclose()
    assert len(fake.aborted) == 1


async def test_a_server_that_aborts_says_so(fake: FakeSglang, opened: Opener) -> None:
    engine, _ = await opened(fake)
    fake.aborts_after = 2
    piece = await whole(engine, ask([500, 501], max_tokens=5))
    assert (len(piece.ids), piece.finish_reason) == (2, "aborted")


async def test_a_reply_that_ends_is_not_aborted(fake: FakeSglang, opened: Opener) -> None:
    engine, _ = await opened(fake)
    await whole(engine, ask([500, 501], max_tokens=3))
    assert fake.aborted == []


async def test_the_weights_version_is_on_each_piece(vocabulary: Vocabulary, opened: Opener) -> None:
    engine, _ = await opened(FakeSglang(vocabulary, weight_version="step-7"))
    pieces = [piece async for piece in engine.generate(ask([500, 501], max_tokens=3))]
    assert [piece.policy_version for piece in pieces] == ["step-7"] * 3
    unnamed, _ = await opened(FakeSglang(vocabulary))
    pieces = [piece async for piece in unnamed.generate(ask([500, 501], max_tokens=3))]
    assert [piece.policy_version for piece in pieces] == [""] * 3


async def test_older_servers_have_older_paths(vocabulary: Vocabulary, opened: Opener) -> None:
    _, info = await opened(FakeSglang(vocabulary, old_paths=True))
    assert info.model == "/weights/toy"


async def test_the_model_list_replaces_limits_that_the_server_does_not_report(
    vocabulary: Vocabulary, opened: Opener
) -> None:
    _, info = await opened(FakeSglang(vocabulary, reports_limits=False), parallel=5)
    assert (info.context_tokens, info.parallel) == (CONTEXT_TOKENS - 1, 5)


async def test_a_model_that_generates_nothing_is_refused(vocabulary: Vocabulary, opened: Opener) -> None:
    with pytest.raises(EngineError, match="does not generate"):
        await opened(FakeSglang(vocabulary, is_generation=False))


async def test_a_stopped_engine_says_so(vocabulary: Vocabulary, opened: Opener) -> None:
    engine, _ = await opened(FakeSglang(vocabulary))
    await engine.stop()
    with pytest.raises(EngineError, match="not running; start it first"):
        await whole(engine, ask([500]))


def test_the_engine_is_known_by_its_name() -> None:
    assert isinstance(make("engine", Spec(name="sglang", options={"url": "http://10.0.0.1:30000"})), SglangEngine)
