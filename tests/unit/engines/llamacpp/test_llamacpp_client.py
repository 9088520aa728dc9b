"""The client against a server that misbehaves, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from contracts.engine_contract import ask, whole
from polar.engines.llamacpp.client import LlamaCppClient
from polar.engines.llamacpp.forced_token import schema_fields
from polar.errors import ContextOverflow, EngineDefect, EngineError, SchemaRefused

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Opener = Callable[[Handler], Awaitable[LlamaCppClient]]


def answer(**changes: Any) -> dict[str, Any]:
    plain = {
        "tokens": [5, 2],
        "tokens_predicted": 2,
        "stop_type": "eos",
        "timings": {"prompt_n": 1, "cache_n": 0, "predicted_n": 2},
        "completion_probabilities": [{"id": 5, "logprob": -0.5}, {"id": 2, "logprob": -0.2}],
    }
    return {**plain, **changes}


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    """A client of a server whose `/completion` is the given handler."""
    parts: list[Any] = []

    async def open_client(completion: Handler) -> LlamaCppClient:
        app = web.Application()
        app.router.add_post("/completion", completion)
        app.router.add_get("/props", say({"total_slots": 1, "default_generation_settings": {"n_ctx": 64}}))
        app.router.add_post("/tokenize", say({"tokens": [9]}))
        server = TestServer(app)
        await server.start_server()
        client = LlamaCppClient(str(server.make_url("")))
        parts.extend([client, server])
        await client.open()
        return client

    yield open_client
    for part in parts:
        await part.close()


def say(body: Any, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handler


async def test_a_stop_id_is_in_the_ids_with_its_logprob(opened: Opener) -> None:
    client = await opened(say(answer()))
    piece = await whole(client, ask([1], stop_ids=(2,)))
    assert list(piece.ids) == [5, 2]
    assert piece.logprobs.tolist() == pytest.approx([-0.5, -0.2])
    assert piece.finish_reason == "stop"


async def test_fewer_ids_than_were_sampled_is_a_defect(opened: Opener) -> None:
    client = await opened(say(answer(tokens=[5])))
    with pytest.raises(EngineDefect, match=r"sampled 2 tokens and returned 1 ids"):
        await whole(client, ask([1]))


async def test_logprobs_of_other_ids_are_a_defect(opened: Opener) -> None:
    client = await opened(say(answer(completion_probabilities=[{"id": 77, "logprob": -0.5}])))
    with pytest.raises(EngineDefect, match=r"do not belong"):
        await whole(client, ask([1]))


async def test_another_shape_of_answer_is_a_defect(opened: Opener) -> None:
    client = await opened(say({"content": "hello"}))
    with pytest.raises(EngineDefect, match=r"in an unknown format"):
        await whole(client, ask([1]))


async def test_a_logprob_that_cannot_be_recovered_stays_nan(opened: Opener) -> None:
    client = await opened(say(answer(completion_probabilities=[{"id": 2, "logprob": -0.2}])))
    piece = await whole(client, ask([1]))
    assert [value == value for value in piece.logprobs] == [False, True]
    assert client.counters()["missing_logprobs"] == 1
    assert client.counters()["recovered_logprobs"] == 0


async def test_a_refusal_carries_the_servers_reason(opened: Opener) -> None:
    client = await opened(say({"error": {"code": 503, "message": "Loading model"}}, status=503))
    with pytest.raises(EngineError, match=r"llama.cpp answered /completion with 503: Loading model"):
        await whole(client, ask([1]))


async def test_a_refusal_without_json_is_quoted(opened: Opener) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="bad gateway")

    with pytest.raises(EngineError, match=r"502: bad gateway"):
        await whole(await opened(broken), ask([1]))


async def test_a_context_that_is_too_small_has_its_own_type(opened: Opener) -> None:
    error = {"type": "exceed_context_size_error", "message": "too long", "n_prompt_tokens": 70, "n_ctx": 64}
    client = await opened(say({"error": error}, status=400))
    with pytest.raises(ContextOverflow, match=r"70 tokens.*64"):
        await whole(client, ask([1]))


SCHEMA = {"type": "object"}


async def test_a_reply_with_a_schema_is_tried_and_then_sampled_in_one_call(opened: Opener) -> None:
    bodies: list[dict[str, Any]] = []

    async def server(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return web.json_response(answer(timings={"prompt_n": 40 // len(bodies), "cache_n": 2, "predicted_n": 2}))

    client = await opened(server)
    piece = await whole(client, ask([1], max_tokens=500, json_schema=SCHEMA))
    trial, sampled = bodies
    assert (trial["n_predict"], trial["logit_bias"]) == (1, [[9, 1000.0]])
    assert (sampled["n_predict"], "logit_bias" in sampled) == (500, False)
    assert trial["json_schema"] == sampled["json_schema"] == schema_fields(SCHEMA)["json_schema"]
    assert piece.evaluated_tokens == client.counters()["evaluated_tokens"] == 40


async def test_a_schema_that_holds_nothing_is_refused(opened: Opener) -> None:
    client = await opened(say(answer(tokens=[9], tokens_predicted=1, completion_probabilities=[])))
    with pytest.raises(SchemaRefused, match="cannot constrain a reply to this json_schema"):
        await whole(client, ask([1], json_schema=SCHEMA))


async def test_a_schema_the_server_refuses_is_named(opened: Opener) -> None:
    error = {"type": "invalid_request_error", "message": "Failed to parse grammar"}
    client = await opened(say({"error": error}, status=400))
    with pytest.raises(SchemaRefused, match="refused the json_schema: Failed to parse grammar"):
        await whole(client, ask([1], json_schema=SCHEMA))


async def test_a_dropped_connection_is_an_engine_error(opened: Opener) -> None:
    async def drop(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    client = await opened(drop)
    with pytest.raises(EngineError, match=r"no connection to llama.cpp"):
        await whole(client, ask([1]))


async def test_a_closed_client_says_so(opened: Opener) -> None:
    client = await opened(say(answer()))
    await client.close()
    with pytest.raises(EngineError, match=r"the engine is stopped"):
        await whole(client, ask([1]))


async def test_a_server_that_gives_no_logprobs_does_not_pass_the_proof(opened: Opener) -> None:
    client = await opened(say(answer(completion_probabilities=[])))
    with pytest.raises(EngineDefect, match=r"gave no usable logprobs"):
        await client.prove()
