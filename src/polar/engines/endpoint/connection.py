"""HTTP with an endpoint: one streamed reply, and errors that name the fix. The key appears in no message."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import aiohttp
import orjson

from polar.engines.remote.server import reason_of
from polar.errors import ChatRefused, ContextOverflow, EngineBusy, EngineError, SchemaRefused
from polar.sse import EventParser

CONNECT_TIMEOUT_S = 10.0
MAX_EVENT_BYTES = 64 * 2**20
RETRY_AFTER_S = 5.0
"""For the harness, if a busy endpoint does not name a delay."""
BUSY = (429, 503, 529)
TEMPORARY = (0, 408, 425, 500, 502, 504, *BUSY)
"""Statuses after which the same request may succeed; 0: there was no connection."""
REFUSALS = (400, 413, 422)
OVERFLOW = re.compile(
    r"context[ _](length|limit|size|window)|prompt is too long|maximum model length|max_model_len|too many tokens",
    re.I,
)
SCHEMA = re.compile(r"schema|response_format|grammar", re.I)
USED_UP = re.compile(r"insufficient_quota|exceeded your current quota|credit balance", re.I)
"""A 429 or 400 that no waiting cures."""
ADVICE = {
    0: "check the engine option `url`, and that the endpoint can be reached from here",
    401: "the engine option `api_key_env` names the environment variable with the key; check its value",
    403: "the key in `api_key_env` may not use this model",
    404: "check the engine options `model`, `url` and `api`",
}


class EndpointRefused(EngineError):
    """The endpoint answered with an error, or not at all (status 0)."""

    def __init__(self, message: str, status: int, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def temporary(self) -> bool:
        return self.status in TEMPORARY and not USED_UP.search(self.reason)

    def explained(self, context_tokens: int, *, with_schema: bool) -> EngineError:
        """As the gateway understands it."""
        if self.status in REFUSALS and OVERFLOW.search(self.reason):
            return ContextOverflow(context_tokens, context_tokens)
        if self.status in REFUSALS and with_schema and SCHEMA.search(self.reason):
            return SchemaRefused(str(self))
        if self.status in REFUSALS and not USED_UP.search(self.reason):
            return ChatRefused(str(self))
        if self.status in BUSY and self.temporary:
            return EngineBusy(str(self), self.retry_after_s or RETRY_AFTER_S)
        return self


class EndpointConnection:
    def __init__(self, url: str, headers: Mapping[str, str], key: str, silence_timeout_s: float) -> None:
        """`url`: of the route that takes the requests."""
        self.url = url
        self._key = key
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_timeout_s)
        # Compressed events would wait for each other in the compressor.
        sent = {**headers, "Accept-Encoding": "identity"}
        self._http = aiohttp.ClientSession(headers=sent, timeout=timeout)

    async def close(self) -> None:
        await self._http.close()

    async def events(self, body: Mapping[str, Any]) -> AsyncGenerator[bytes]:
        """The data of each event of a streamed reply. Leaving early closes the connection, and the endpoint stops
        sampling. Raises `EndpointRefused`."""
        headers = {"Content-Type": "application/json"}
        try:
            async with self._http.post(self.url, data=orjson.dumps(body), headers=headers) as reply:
                if reply.status != 200:
                    payload = await reply.read()
                    raise self.refusal(reply.status, payload, _seconds(reply.headers.get("retry-after")))
                if reply.content_type != "text/event-stream":
                    raise self.refusal(501, f"it answers in {reply.content_type}, not with a stream of events")
                async with aclosing(_data(reply.content)) as events:
                    async for data in events:
                        yield data
        except (aiohttp.ClientError, OSError) as error:
            raise self.refusal(0, f"no connection: {str(error) or type(error).__name__}") from error

    def refusal(self, status: int, payload: bytes | str, retry_after_s: float | None = None) -> EndpointRefused:
        """`payload`: an error body, or the reason itself."""
        reason = reason_of(payload) if isinstance(payload, bytes) else payload
        code = _code_of(payload) if isinstance(payload, bytes) else ""
        whole = f"{reason} ({code})" if code and code not in reason else reason
        shown = whole.replace(self._key, "[key]") if self._key else whole
        advice = f"; {ADVICE[status]}" if status in ADVICE else ""
        what = f"answered with {status}: {shown}" if status else shown
        return EndpointRefused(f"the endpoint {self.url}: {what}{advice}", status, shown, retry_after_s)


async def _data(content: aiohttp.StreamReader) -> AsyncGenerator[bytes]:
    parser = EventParser()
    async for chunk in content.iter_any():
        for data in parser.feed(chunk):
            yield data
        if parser.unfinished_bytes > MAX_EVENT_BYTES:
            raise EngineError(f"the endpoint sent an event of more than {MAX_EVENT_BYTES} bytes")
    for data in parser.feed(b"\n\n"):  # an endpoint may leave out the empty line at the very end
        yield data


def _code_of(payload: bytes) -> str:
    """The error's code or type, such as `insufficient_quota`."""
    try:
        error: Any = orjson.loads(payload)["error"]
        found: Any = error.get("code") or error.get("type")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:  # a date
        return None
