"""Every path the gateway has, and what it says to all others."""

from __future__ import annotations

import asyncio
import gzip
from io import BytesIO
from typing import Any

import orjson
import pytest
import zstandard
from playbook import Gateway, OpenGateway

from polar.types import Slot

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
MESSAGES = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi."}]}
RESPONSES = {"model": "m", "input": "Hi."}
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]}
GENERATION = {
    "/v1/messages": ("anthropic", MESSAGES),
    "/v1/messages?beta=true": ("anthropic", MESSAGES),
    "/v1/v1/messages": ("anthropic", MESSAGES),
    "/v1/chat/completions": ("openai_chat", CHAT),
    "/v1/v1/chat/completions": ("openai_chat", CHAT),
    "/v1/completions": ("openai_completions", {"model": "m", "prompt": "Once"}),
    "/v1/responses": ("openai_responses", RESPONSES),
    "/v1beta/models/polar:generateContent": ("google", CONTENTS),
    "/v1/models/polar:generateContent": ("google", CONTENTS),
    "/v1beta/models/org/name:generateContent": ("google", CONTENTS),
    "/v1beta/v1/models/polar:generateContent": ("google", CONTENTS),
    "/v1beta/models/polar:streamGenerateContent": ("google", CONTENTS),
    "/v1/models/polar:streamGenerateContent?alt=sse": ("google", CONTENTS),
}


async def request(
    gateway: Gateway, slot: Slot, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes, Any]:
    headers = {"authorization": f"Bearer {slot.key}", **headers}
    data = None if body is None else BytesIO(body if isinstance(body, bytes) else orjson.dumps(body))
    async with gateway.http.request(method, slot.base_url + path, data=data, headers=headers) as response:
        return response.status, await response.read(), response.headers


@pytest.mark.parametrize("path", GENERATION)
async def test_a_path_speaks_its_dialect(open_gateway: OpenGateway, path: str) -> None:
    gateway = await open_gateway(["Hello there."])
    dialect, body = GENERATION[path]
    status, answer, _ = await request(gateway, await gateway.open(), "POST", path, body)
    assert status == 200 and b"Hello there." in answer
    (call,) = await gateway.calls()
    assert call.dialect == dialect and call.received


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/messages/count_tokens", {"model": "m", "messages": MESSAGES["messages"]}, "input_tokens"),
        ("/v1/messages/count_tokens?beta=true", MESSAGES, "input_tokens"),
        ("/v1/responses/input_tokens", RESPONSES, "input_tokens"),
        ("/v1beta/models/polar:countTokens", CONTENTS, "totalTokens"),
        ("/v1/models/polar:countTokens", {"generateContentRequest": CONTENTS}, "totalTokens"),
    ],
)
async def test_counting_is_real_and_no_call(
    open_gateway: OpenGateway, path: str, body: dict[str, Any], field: str
) -> None:
    gateway = await open_gateway(["Hello there."])
    slot = await gateway.open(budgets={"max_calls": 1})
    status, answer, _ = await request(gateway, slot, "POST", path, body)
    assert status == 200 and gateway.engine.requests == [] and await gateway.calls() == []
    await request(gateway, slot, "POST", "/v1/chat/completions", CHAT)
    (call,) = await gateway.calls()
    assert orjson.loads(answer)[field] == call.prompt_tokens


@pytest.mark.parametrize(
    ("path", "headers", "where"),
    [
        ("/v1/models", {}, ("data", 0, "id")),
        ("/v1/v1/models", {}, ("data", 0, "id")),
        ("/v1/models/polar", {}, ("id",)),
        ("/v1/models?limit=1000", {"anthropic-version": "2023-06-01"}, ("data", 0, "id")),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, ("has_more",)),
        ("/v1/models/polar", {"anthropic-version": "2023-06-01"}, ("display_name",)),
        ("/v1/models", {"x-goog-api-key": "KEY"}, ("models", 0, "name")),
        ("/v1/models/polar", {"x-goog-api-key": "KEY"}, ("name",)),
        ("/v1beta/models", {}, ("models", 0, "name")),
        ("/v1beta/models/polar", {}, ("name",)),
        ("/v1beta/models/models/polar", {}, ("name",)),
    ],
)
async def test_models_are_listed_in_the_shape_of_who_asks(
    open_gateway: OpenGateway, path: str, headers: dict[str, str], where: tuple[Any, ...]
) -> None:
    gateway = await open_gateway([])
    slot = await gateway.open()
    named = {name: slot.key if value == "KEY" else value for name, value in headers.items()}
    status, answer, _ = await request(gateway, slot, "GET", path, **named)
    value: Any = orjson.loads(answer)
    for step in where:
        value = value[step]
    assert status == 200 and value in ("polar", "models/polar", False)


@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "1"}, {"x-goog-api-key": "none"}])
async def test_another_model_is_not_found(open_gateway: OpenGateway, headers: dict[str, str]) -> None:
    gateway = await open_gateway([])
    status, answer, _ = await request(gateway, await gateway.open(), "GET", "/v1/models/other", **headers)
    assert status == 404 and b"polar" in answer


@pytest.mark.parametrize("place", ["x-api-key", "x-goog-api-key", "authorization", "query"])
async def test_the_key_is_found_where_the_providers_put_it(open_gateway: OpenGateway, place: str) -> None:
    gateway = await open_gateway([])
    slot = await gateway.open()
    headers = {} if place == "query" else {place: f"Bearer {slot.key}" if place == "authorization" else slot.key}
    query = f"?key={slot.key}" if place == "query" else ""
    async with gateway.http.get(f"{slot.base_url}/v1beta/models{query}", headers=headers) as response:
        assert response.status == 200
    async with gateway.http.get(f"{slot.base_url}/v1beta/models") as response:
        assert response.status == 401


@pytest.mark.parametrize("path", ["/", "/api/hello"])
async def test_who_asks_whether_anybody_is_there_is_answered(open_gateway: OpenGateway, path: str) -> None:
    gateway = await open_gateway([])
    async with gateway.http.head((await gateway.open()).base_url + path) as response:
        assert response.status == 200


async def test_a_websocket_is_refused_so_that_http_is_tried_at_once(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Over HTTP."])
    slot = await gateway.open()
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    status, answer, _ = await request(gateway, slot, "GET", "/v1/responses", **upgrade)
    assert status == 426 and b"POST" in answer
    assert (await request(gateway, slot, "POST", "/v1/responses", RESPONSES))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "shape"),
    [
        ("GET", "/", 405, "error"),
        ("POST", "/v1/embeddings", 404, "error"),
        ("POST", "/v1/messages/", 404, "type"),
        ("POST", "/v1/messages/batches", 404, "type"),
        ("GET", "/v1/messages", 405, "type"),
        ("DELETE", "/v1/chat/completions", 405, "error"),
        ("POST", "/v1beta/models/polar:embedContent", 404, "error"),
        ("POST", "/v1beta/cachedContents", 404, "error"),
        ("POST", "/chat/completions", 404, "error"),
    ],
)
async def test_any_other_path_is_refused_and_recorded_nowhere(
    open_gateway: OpenGateway, method: str, path: str, status: int, shape: str
) -> None:
    gateway = await open_gateway(["never"])
    slot = await gateway.open()
    seen, answer, _ = await request(gateway, slot, method, path, CHAT if method == "POST" else None)
    assert seen == status and shape in orjson.loads(answer)
    assert gateway.engine.requests == [] and await gateway.calls() == []


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
async def test_a_packed_body_is_read(open_gateway: OpenGateway, encoding: str, pack: Any) -> None:
    gateway = await open_gateway(["Hello there."])
    slot = await gateway.open()
    packed = pack(orjson.dumps(RESPONSES))
    status, answer, _ = await request(
        gateway, slot, "POST", "/v1/responses", packed, **{"content-encoding": encoding}
    )
    assert status == 200 and b"Hello there." in answer


async def test_a_large_body_is_read_while_others_are_served(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(lambda turn, ids: "Read it all.", context_tokens=600_000)
    slot, other = await gateway.open(), await gateway.open("s2")
    long = {**CHAT, "messages": [{"role": "user", "content": "lorem ipsum " * 100_000}]}
    large, small = await asyncio.gather(
        request(gateway, slot, "POST", "/v1/chat/completions", long),
        request(gateway, other, "POST", "/v1/chat/completions", CHAT),
    )
    assert (large[0], small[0]) == (200, 200), large[1]
    (call,) = await gateway.calls()
    assert call.prompt_tokens > 500_000


async def test_the_openapi_page_names_every_path(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([])
    slot = await gateway.open()
    status, answer, _ = await request(gateway, slot, "GET", "/openapi.json")
    page = orjson.loads(answer)
    assert status == 200 and page["openapi"].startswith("3.")
    for path in page["paths"]:
        method = next(iter(page["paths"][path]))
        refused = {"authorization": "Bearer unknown"}
        spelled = path.replace("{model}", "polar")
        seen, _, _ = await request(
            gateway, slot, method.upper(), spelled, {} if method == "post" else None, **refused
        )
        assert seen == 401, path
