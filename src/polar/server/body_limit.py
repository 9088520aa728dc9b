"""Limits the size of request bodies."""

from __future__ import annotations

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polar.config import ServerConfig


class BodyLimit:
    """ASGI middleware. Refuses a large body as soon as its size is announced or exceeded."""

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            limit = self._limit(scope)
            if announced_size(scope) > limit:
                return await JSONResponse({"detail": _message(limit)}, 413)(scope, receive, send)
            receive = bounded(receive, limit)
        await self._app(scope, receive, send)

    def _limit(self, scope: Scope) -> int:
        uploading = scope["method"] == "PUT" and scope["path"].endswith("/result")
        return self._config.max_upload_bytes if uploading else self._config.max_task_bytes


def announced_size(scope: Scope) -> int:
    found = dict(scope["headers"]).get(b"content-length", b"0")
    return int(found) if found.isdigit() else 0


def bounded(receive: Receive, limit: int) -> Receive:
    """Counts bodies that do not announce their size; FastAPI turns the exception into the answer."""
    seen = 0

    async def receive_bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, _message(limit))
        return message

    return receive_bounded


def _message(limit: int) -> str:
    return f"the body is larger than {limit} bytes; make it smaller or raise the server's limit"
