"""The vLLM engine against servers with other settings, and against servers that misbehave, over real HTTP.

The server is a fake over a toy model; `tests/e2e/heavy/test_vllm_engine.py` asks a real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import CONTEXT_TOKENS, MODEL, FakeVllm, Handler
from running_llama import Connect

from contracts.engine_contract import EngineContract, SchemaContract, ask, whole
from polar.engines.base import EngineInfo
from polar.engines.vllm.engine import VllmEngine, VllmOptions
from polar.errors import ConfigError, ContextOverflow, EngineBusy, EngineDefect, EngineError
from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import PolicySpan, Spec, token_ids
from waiting import until

GENERATE = "/inference/v1/generate"
Opener = Callable[..., Awaitable[VllmEngine]]


@pytest.fixture
def reach(connect: Connect) -> Opener:
    """An engine, not started, at the address of an app."""
    return partial(connect, "vllm", parallel=4)


@pytest.fixture
def fake(vocabulary: Vocabulary) -> FakeVllm:
    return FakeVllm(vocabulary)


def events(*sent: Any) -> Handler:
    """Says this and closes the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in sent:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())
        return response

    return handler


def choice(token_id: int, logprob: float | None, finish: str | None = None) -> dict[str, Any]:
    content = [{"token_id": token_id, "logprob": logprob}]
    return {"choices": [{"token_ids": [token_id], "logprobs": {"content": content}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    "fake_options", [{}, {"scale_out": False, "processed": True}], ids=["tokens", "completions"]
)
class TestVllmEngineByContract(EngineContract, SchemaContract):
    @pytest.fixture
    async def started(
        self, vocabulary: Vocabulary, reach: Opener, fake_options: dict[str, Any]
    ) -> tuple[VllmEngine, EngineInfo]:
        engine = await reach(FakeVllm(vocabulary, **fake_options).app())
        return engine, await engine.start()

    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return vocabulary.encode("Say hi to the toy model.")

    async def test_the_meaning_of_logprobs_is_measured(
        self, info: EngineInfo, fake_options: dict[str, Any]
    ) -> None:
        assert info.logprob_mode == ("processed" if fake_options else "raw")

    async def test_logprobs_under_a_schema_are_scored(self, engine: VllmEngine, prompt: list[int]) -> None:
        piece = await whole(engine, ask(prompt, max_tokens=40, json_schema={"const": {"a": 1}}))
        ids = token_ids([*prompt, *piece.ids])
        scored = await engine.score(ids, range(len(prompt), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-5)
        assert max(piece.logprobs) < -1


async def test_every_sampling_value_is_sent(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app(), priority=3)
    await engine.start()
    await whole(engine, ask([500, 501], "a-session", max_tokens=3, temperature=0.5, top_k=9, stop_ids=(7,)))
    body, headers = fake.bodies[-1], fake.headers[-1]
    knobs = body["sampling_params"]
    assert (body["token_ids"], body["model"], body["priority"]) == ([500, 501], "toy", 3)
    assert (knobs["temperature"], knobs["top_p"], knobs["top_k"], knobs["min_p"]) == (0.5, 1.0, 9, 0.0)
    assert (knobs["max_tokens"], knobs["stop_token_ids"], knobs["repetition_penalty"]) == (3, [7], 1.0)
    assert (knobs["logprobs"], knobs["seed"], knobs["detokenize"]) == (0, 7, False)
    assert headers["x-session-id"] == "a-session"


async def test_max_tokens_never_exceeds_the_room(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    await engine.start()
    piece = await whole(engine, ask([500] * 760, max_tokens=5000))
    assert (len(piece.ids), piece.finish_reason) == (7, "length")
    assert fake.bodies[-1]["sampling_params"]["max_tokens"] == 7


async def test_a_full_context_can_be_scored(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    info = await engine.start()
    assert info.context_tokens == CONTEXT_TOKENS - 1
    ids = token_ids([500] * info.context_tokens)
    scored = await engine.score(ids, [len(ids) - 1])
    assert scored.tolist() == pytest.approx([fake.model.logprob([500, 500], 500)], abs=1e-5)
    with pytest.raises(ContextOverflow, match=str(info.context_tokens)):
        await engine.score(ids + ids, [len(ids)])


async def test_only_what_is_needed_is_sent_to_be_scored(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    await engine.start()
    await engine.score(token_ids([500, 501, 502, 503]), [2, 1])
    assert fake.bodies[-1]["token_ids"] == [500, 501, 502]
    asked = len(fake.bodies)
    assert list(await engine.score(token_ids([500, 501]), [])) == []
    assert len(fake.bodies) == asked


async def test_a_schema_reply_that_fills_the_context_is_scored(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    await engine.start()
    piece = await whole(engine, ask([500] * 765, max_tokens=9, json_schema={"const": {"a": [1, 2]}}))
    assert (len(piece.ids), piece.finish_reason) == (2, "length")
    assert max(piece.logprobs) < -1


async def test_the_versions_that_sampled_a_reply_are_named(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    await engine.start()
    reported: list[Any] = []
    for fake.versions in (["default"], ["step-7"], ["default", "step-7"], ["step-7", "step-8"]):
        *before, last = [piece async for piece in engine.generate(ask([500], max_tokens=3))]
        assert not any(piece.policy_version or piece.policy_spans for piece in before)
        reported.append((last.policy_version, last.policy_spans))
    assert reported == [
        ("", ()),
        ("step-7", (PolicySpan("step-7", 0, 3),)),
        ("step-7", (PolicySpan("", 0, 1), PolicySpan("step-7", 1, 2))),
        ("step-8", (PolicySpan("step-7", 0, 1), PolicySpan("step-8", 1, 2))),
    ]


async def test_closing_the_iterator_closes_the_connection(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    await engine.start()
    fake.step_s = 0.01
    pieces = engine.generate(ask([500], max_tokens=700))
    await anext(pieces)
    await pieces.aclose()
    await until(lambda: fake.abandoned)


async def test_the_model_is_chosen_where_there_are_several(fake: FakeVllm, reach: Opener) -> None:
    fake.models.append({**MODEL, "id": "other"})
    with pytest.raises(ConfigError, match="serves toy, toy-lora, other: choose one with"):
        await (await reach(fake.app())).start()
    info = await (await reach(fake.app(), model="toy-lora")).start()
    assert info.model == "toy-lora (/weights/lora)"
    with pytest.raises(ConfigError, match="has no model 'absent'; it has: toy, toy-lora, other"):
        await (await reach(fake.app(), model="absent")).start()


async def test_a_server_that_does_not_score_needs_a_configured_mode(fake: FakeVllm, reach: Opener) -> None:
    fake.scores = False
    with pytest.raises(ConfigError, match="set the engine option `logprob_mode`"):
        await (await reach(fake.app())).start()
    info = await (await reach(fake.app(), logprob_mode="processed")).start()
    assert info.logprob_mode == "processed"


async def test_a_mode_that_is_not_the_servers_is_refused(fake: FakeVllm, reach: Opener) -> None:
    with pytest.raises(
        EngineDefect, match="gives raw logprobs, and the engine option `logprob_mode` says processed"
    ):
        await (await reach(fake.app(), logprob_mode="processed")).start()


async def test_the_route_for_tokens_can_be_demanded(fake: FakeVllm, reach: Opener) -> None:
    fake.scale_out = False
    with pytest.raises(EngineError, match="start it with --enable-scale-out"):
        await (await reach(fake.app(), route="generate")).start()


async def test_an_engine_whose_start_failed_can_be_started_again(fake: FakeVllm, reach: Opener) -> None:
    fake.scores = False
    engine = await reach(fake.app())
    with pytest.raises(ConfigError):
        await engine.start()
    fake.scores = True
    await engine.start()
    with pytest.raises(EngineError, match="already started"):
        await engine.start()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (events(choice(5, None, "stop"), "[DONE]"), "gave no usable logprobs"),
        (events(choice(5, -9999.0, "stop"), "[DONE]"), "gave no usable logprobs"),
        (events(choice(5, 14.2, "stop"), "[DONE]"), "not logits"),
        (events({"choices": [{"token_ids": [], "finish_reason": "stop"}]}, "[DONE]"), "0 ids and 0 logprobs"),
        (events(choice(5, -1.0, "length"), "[DONE]"), "does not stop at a stop id"),
    ],
    ids=["none", "sentinel", "logits", "empty", "no-stop"],
)
async def test_a_server_that_cannot_be_trained_on_does_not_pass(
    fake: FakeVllm, reach: Opener, answer: Handler, message: str
) -> None:
    fake.instead = answer
    with pytest.raises(EngineDefect, match=message):
        await (await reach(fake.app())).start()


async def test_a_stop_id_that_is_cut_off_does_not_pass(fake: FakeVllm, reach: Opener) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        knobs = (await request.json())["sampling_params"]
        if knobs["stop_token_ids"]:
            return await events({"choices": [{"token_ids": [], "finish_reason": "stop"}]}, "[DONE]")(request)
        return await events(choice(5, -1.0, "length"), "[DONE]")(request)

    fake.instead = cut
    with pytest.raises(EngineDefect, match="leaves the stop id out of a reply's ids"):
        await (await reach(fake.app())).start()


async def fails(fake: FakeVllm, reach: Opener, streams: Handler, kind: type[Exception], message: str) -> None:
    """An engine that started well, and whose next reply fails so."""
    engine = await reach(fake.app(), silence_timeout_s=0.5)
    await engine.start()
    fake.instead = streams
    with pytest.raises(kind, match=message):
        await whole(engine, ask([500], max_tokens=9))


async def test_a_busy_server_says_when_to_retry(fake: FakeVllm, reach: Opener) -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "full"}, status=503, headers={"Retry-After": "7"})

    engine = await reach(fake.app())
    await engine.start()
    fake.instead = busy
    with pytest.raises(EngineBusy, match="503: full") as raised:
        await whole(engine, ask([500]))
    assert raised.value.retry_after_s == 7.0


async def test_a_limit_without_a_time_is_busy_too(fake: FakeVllm, reach: Opener) -> None:
    async def limited(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, text="slow down", headers={"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"})

    await fails(fake, reach, limited, EngineBusy, "429: slow down")


async def test_a_reply_that_breaks_off_is_an_error(fake: FakeVllm, reach: Opener) -> None:
    await fails(fake, reach, events(choice(5, -1.0)), EngineError, "ended a stream early")


WRONG = {"choices": [{"token_ids": [7], "logprobs": {"content": []}}]}


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (choice(7, -1.0, "stop"), "ended a stream early"),
        (WRONG, "do not belong together"),
        ({"error": {"message": "out of memory", "code": 500}}, "out of memory"),
    ],
    ids=["cut-before-the-end", "wrong-logprobs", "reported"],
)
async def test_ids_that_came_before_a_failure_are_given_first(
    fake: FakeVllm, reach: Opener, failure: Any, message: str
) -> None:
    engine = await reach(fake.app())
    await engine.start()
    fake.instead = events(choice(5, -1.0), choice(6, -2.0), failure)
    given: list[int] = []
    with pytest.raises(EngineError, match=message):
        async for piece in engine.generate(ask([500], max_tokens=9)):
            given += piece.ids
    assert given == [5, 6]


async def test_ids_that_come_with_the_end_are_one_piece_with_it(fake: FakeVllm, reach: Opener) -> None:
    async def at_once(request: web.Request) -> web.StreamResponse:
        sent = [choice(5, -1.0), choice(6, -2.0), choice(7, -3.0, "stop")]
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in sent)
        return web.Response(text=f"{lines}data: [DONE]\n\n", content_type="text/event-stream")

    engine = await reach(fake.app())
    await engine.start()
    fake.instead = at_once
    pieces = [piece async for piece in engine.generate(ask([500], max_tokens=9))]
    assert [piece.ids.tolist() for piece in pieces] == [[5, 6, 7]]
    assert [*pieces[0].logprobs] == [-1.0, -2.0, -3.0] and pieces[0].finish_reason == "stop"


async def test_a_connection_that_is_cut_is_an_error(fake: FakeVllm, reach: Opener) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: " + json.dumps(choice(5, -1.0)).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    await fails(fake, reach, cut, EngineError, "no connection to vLLM")


async def test_a_server_that_falls_silent_is_an_error(fake: FakeVllm, reach: Opener) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return response

    await fails(fake, reach, silent, EngineError, "no connection to vLLM.*check that the server")


async def test_an_error_in_the_stream_is_raised(fake: FakeVllm, reach: Opener) -> None:
    error = {"error": {"message": "engine dead", "code": 500}}
    await fails(fake, reach, events(choice(5, -1.0), error, "[DONE]"), EngineError, "500: engine dead")


async def test_a_reply_without_an_end_is_an_error(fake: FakeVllm, reach: Opener) -> None:
    await fails(
        fake, reach, events(choice(5, -1.0), "[DONE]"), EngineError, "ended a reply without a finish reason"
    )


async def test_another_shape_is_a_defect(fake: FakeVllm, reach: Opener) -> None:
    await fails(fake, reach, events({"choices": "text"}, "[DONE]"), EngineDefect, "in an unknown format")


async def test_an_aborted_reply_says_so(fake: FakeVllm, reach: Opener) -> None:
    end = {"choices": [{"token_ids": [], "finish_reason": "abort"}]}
    engine = await reach(fake.app())
    await engine.start()
    fake.instead = events(choice(5, -1.0), end, "[DONE]")
    piece = await whole(engine, ask([500], max_tokens=9))
    assert (list(piece.ids), piece.finish_reason) == ([5], "aborted")


async def test_a_missing_logprob_is_nan_and_counted(fake: FakeVllm, reach: Opener) -> None:
    engine = await reach(fake.app())
    await engine.start()
    fake.instead = events(choice(5, -9999.0), choice(6, -1.0, "stop"), "[DONE]")
    piece = await whole(engine, ask([500], max_tokens=9))
    assert [value == value for value in piece.logprobs] == [False, True]
    assert engine.counters()["missing_logprobs"] == 1
    assert piece.evaluated_tokens is None


async def test_a_server_that_hangs_at_the_start_is_given_up(reach: Opener) -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        while request.transport is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return web.Response()

    app = web.Application()
    app.router.add_get("/v1/models", hang)
    with pytest.raises(EngineError, match=r"not passed the self-test.*start_timeout_s"):
        await (await reach(app, start_timeout_s=0.3)).start()


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "set its key with `api_key_env`"), (404, "root of a vLLM server"), (500, "server's log")],
)
async def test_a_refusal_at_the_start_names_the_fix(reach: Opener, status: int, message: str) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no"}, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", refuse)
    with pytest.raises(EngineError, match=message):
        await (await reach(app)).start()


async def test_an_unreachable_server_is_reported() -> None:
    engine = VllmEngine(VllmOptions(url="http://127.0.0.1:9"))
    with pytest.raises(
        EngineError, match=r"no connection to vLLM at http://127.0.0.1:9.*vllm serve.*option `url`"
    ):
        await engine.start()


def test_the_engine_is_known_by_its_name() -> None:
    assert isinstance(make("engine", Spec(name="vllm", options={"url": "http://10.0.0.1:8000"})), VllmEngine)
