"""Tokens, strict JSON and body limits: the checks before a request is handled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import HTTPException, Request
from starlette.types import Message

from polar.config import ServerConfig
from polar.server.access.auth import StrictRequest, bearer
from polar.server.access.tokens import ServiceTokens
from polar.server.body_limit import BodyLimit, announced_size, bounded


def request_with(authorization: str | None) -> Request:
    headers = [] if authorization is None else [(b"authorization", authorization.encode("latin-1"))]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("Bearer  abc ", "abc"),
        ("Bearer", ""),
        ("Basic abc", ""),
        ("abc", ""),
        ("", ""),
        (None, ""),
        ("Bearer ü", "ü"),
    ],
)
def test_the_bearer_is_read_from_its_header(header: str | None, secret: str) -> None:
    assert bearer(request_with(header)) == secret


def test_tokens_are_not_shown() -> None:
    shown = repr(ServiceTokens("control-secret", "node-secret"))
    assert "secret" not in shown


@pytest.mark.parametrize(("control", "node"), [("", "x"), ("x", ""), ("x", "x")])
def test_tokens_must_be_two(control: str, node: str) -> None:
    with pytest.raises(ValueError, match="must differ"):
        ServiceTokens(control, node)


def receiving(*chunks: bytes) -> Any:
    left = list(chunks)

    async def receive() -> Message:
        chunk = left.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    return receive


@pytest.mark.parametrize("body", [b"NaN", b'"\\ud800"', b"{", b"[" * 5000, b"1e999", b"\xff", b"'a'"])
async def test_json_is_read_by_the_standard(body: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        await StrictRequest({"type": "http", "headers": []}, receiving(body)).json()


async def test_an_error_in_json_does_not_carry_the_body() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        await StrictRequest({"type": "http", "headers": []}, receiving(b'{"key": "secret"')).json()
    assert "secret" not in caught.value.doc + str(caught.value)


async def test_what_fits_is_passed_on() -> None:
    receive = bounded(receiving(b"12345", b"67890"), 10)
    assert [(await receive())["body"] for _ in range(2)] == [b"12345", b"67890"]


async def test_what_grows_too_far_is_refused_where_it_does() -> None:
    receive = bounded(receiving(b"12345", b"67890", b"1", b"2"), 10)
    await receive()
    await receive()
    with pytest.raises(HTTPException) as caught:
        await receive()
    assert caught.value.status_code == 413


async def test_a_body_announced_as_too_large_reaches_no_route() -> None:
    sent: list[Message] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        pytest.fail("the app is not asked")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"content-length", b"101")]
    scope = {"type": "http", "method": "GET", "path": "/v1/events", "headers": headers}
    await BodyLimit(app, ServerConfig(max_task_bytes=100))(scope, receiving(), send)
    assert sent[0]["status"] == 413
    assert b"100 bytes" in sent[1]["body"]


@pytest.mark.parametrize(
    ("header", "size"), [(b"12", 12), (b"", 0), (b"-1", 0), (b"x", 0), (b"9" * 30, 10**30 - 1)]
)
def test_the_announced_size_is_read_with_care(header: bytes, size: int) -> None:
    assert announced_size({"headers": [(b"content-length", header)]}) == size


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [
        ("POST", "/v1/tasks", 100),
        ("PUT", "/v1/policy", 100),
        ("PUT", "/v1/nodes/n/sessions/s/attempts/1/result", 1000),
        ("POST", "/v1/nodes/n/sessions/s/attempts/1/result", 100),
    ],
)
async def test_uploads_have_a_limit_of_their_own(method: str, path: str, limit: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    bodies = BodyLimit(app, ServerConfig(max_task_bytes=100, max_upload_bytes=1000))
    scope = {"type": "http", "method": method, "path": path, "headers": []}

    async def send(_: Message) -> None:
        return

    await bodies(scope, receiving(b"x" * limit), send)
    with pytest.raises(HTTPException):
        await bodies(scope, receiving(b"x" * (limit + 1)), send)
