"""Model routes: from an HTTP request to a served call, in any dialect.

The path picks the dialect, the key picks the session. Streaming or not, the order is the same: refuse what must be
refused, sample, journal, send the end, and only then mark the reply as received.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.datastructures import QueryParams

from polar.config import GatewayConfig
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.model_call import call_lost
from polar.gateway.calls.threads import CallThreads
from polar.gateway.dialects.base import ChatRequest, Dialect
from polar.gateway.dialects.problems import Problem, too_deep
from polar.gateway.dialects.raw_request import RawRequest, first_image
from polar.gateway.http.bodies import (
    MOST_VALUES,
    decompressed,
    may_hold_lone,
    readable_arguments,
    sound_text,
)
from polar.gateway.http.connection import TRANSPORT, Connection, Receive, Send
from polar.gateway.http.delivery import ClientGone, Delivery
from polar.gateway.http.listeners import INTERCEPTED, LISTENER_OF
from polar.gateway.slots import OpenSlot, SlotTable, sealed_problem

DOUBLED_VERSION = re.compile(r"^(?:/v1(?:beta)?)+(?=/v1(?:beta)?/)")
SHORT_BODY_BYTES = 2**18
"""Longer bodies are read in a thread, so that other sessions' tokens do not wait for a megabyte of JSON."""
SHORT_COMPRESSED_BYTES = 2**12
"""The same for compressed bodies, which may grow a thousandfold."""


class RequestHead(NamedTuple):
    """A request without its body."""

    headers: dict[str, str]
    """The first of each name, in lower case."""
    query: dict[str, str]
    listener_of: str | None
    """The session through whose own listener it came, if any."""
    intercepted: bool = False
    """The harness believes that it talks to its provider."""

    @classmethod
    def of(cls, scope: Any) -> RequestHead:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        query = scope["query_string"]
        return cls(
            headers,
            dict(QueryParams(query)) if query else {},
            scope.get(LISTENER_OF),
            scope.get(INTERCEPTED, False),
        )

    @property
    def key(self) -> str:
        """Wherever one of the providers' clients puts it."""
        bearer = self.headers.get("authorization", "")
        if bearer[:7].lower() == "bearer ":
            return bearer[7:].strip()
        return self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or self.query.get("key", "")


def authenticate(slots: SlotTable, head: RequestHead) -> OpenSlot:
    """The slot of the request's key. One session's key does not work at another session's listener. An intercepted
    request without a session's key is the listener's session's own: no other session reaches that listener."""
    slot = slots.find(head.key)
    if slot is None and head.intercepted and head.listener_of is not None:
        slot = slots.of_session(head.listener_of)
    if slot is None or head.listener_of not in (None, slot.session_id):
        raise Problem(401, "invalid_api_key", "unknown key: use the key of the session's slot")
    return slot


class CountingDialect(Dialect, Protocol):
    """A dialect whose provider counts tokens."""

    def count(self, tokens: int) -> bytes: ...


class Service(NamedTuple):
    """What every route works with."""

    slots: SlotTable
    calls: CallService
    config: GatewayConfig
    threads: CallThreads


class GatewayApp:
    """All routes. A version that stands twice in a path, from a base URL and from a client, counts once."""

    def __init__(self, model_routes: Mapping[str, ModelRoute], other_routes: Any) -> None:
        self._model_routes = model_routes
        self._other_routes = other_routes

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path = scope["path"] = DOUBLED_VERSION.sub("", scope["path"])
        # Nearly every request is a model call: it does not pass through the layers of the framework.
        route = self._model_routes.get(path) if scope["method"] == "POST" else None
        await (route or self._other_routes)(scope, receive, send)


class _Route:
    """An ASGI app that serves one path in one dialect."""

    def __init__(self, dialect: Dialect, service: Service, action: str = "") -> None:
        """`action`: what requests to this path ask for, where the dialect has more than one path."""
        self._dialect = dialect
        self._action = action
        self._slots = service.slots
        self._calls = service.calls
        self._config = service.config
        self._threads = service.threads

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        connection = Connection(receive, send, scope.get(TRANSPORT))
        try:
            head = RequestHead.of(scope)
            slot = authenticate(self._slots, head)
            if slot.sealed:
                raise sealed_problem()
            await self._take(slot, connection, head)
        except Problem as problem:
            if connection.started:
                return  # a body without an end cuts the connection
            error = self._dialect.error(problem)
            await connection.respond(error.status, error.body, error.headers)
        except (ClientGone, ConnectionResetError):
            return
        finally:
            await connection.close()

    async def _take(self, slot: OpenSlot, connection: Connection, head: RequestHead) -> None:
        try:
            # A client that never ends its body is not served yet, and sealing does not wait for it.
            body = await connection.read_body(self._config.max_body_bytes)
            request = await self._read(slot, body, head)
            await self._serve(slot, connection, request, head.headers)
        except Problem as problem:
            self._refused(slot, problem)
            raise
        except (ClientGone, ConnectionResetError):
            raise
        except (Exception, SystemExit) as error:  # a fault of ours: the harness gets its provider's error
            problem = call_lost(slot, "gateway", error)
            self._refused(slot, problem)
            raise problem from error

    def _refused(self, slot: OpenSlot, problem: Problem) -> None:
        slot.refused(problem)

    async def _read(self, slot: OpenSlot, body: bytes, head: RequestHead) -> ChatRequest:
        encoding = head.headers.get("content-encoding", "")
        recent = slot.recent_bodies(self._dialect.name, self._dialect.history_field)
        shared = None if encoding else recent.shared(body)

        def read() -> ChatRequest:
            plain = decompressed(body, encoding, self._config.max_body_bytes)
            plain, lone = sound_text(plain)
            known = recent.shared(plain) if encoding or lone else shared
            raw = recent.read(plain, MOST_VALUES + self._calls.context_tokens, known)
            request = self._parsed(msgspec.structs.replace(raw, action=self._action, query=head.query))
            request = msgspec.structs.replace(request, size_bytes=len(plain), lone_surrogates=lone)
            return readable_arguments(request) if may_hold_lone(plain) else request

        new_bytes = len(body) - (shared.end if shared else 0)
        if new_bytes <= (SHORT_COMPRESSED_BYTES if encoding else SHORT_BODY_BYTES):
            return read()
        async with slot.reading:
            return await self._threads.run(read)

    def _parsed(self, raw: RawRequest) -> ChatRequest:
        try:
            request = self._dialect.parse(raw)
        except RecursionError as error:
            raise too_deep() from error
        if any(message.images for message in request.messages):
            return msgspec.structs.replace(request, image_field=first_image(raw.data))
        return request

    async def _serve(
        self, slot: OpenSlot, connection: Connection, request: ChatRequest, headers: dict[str, str]
    ) -> None:
        raise NotImplementedError


class ModelRoute(_Route):
    """Samples a reply."""

    async def _serve(
        self, slot: OpenSlot, connection: Connection, request: ChatRequest, headers: dict[str, str]
    ) -> None:
        kind = slot.profile.kind_of(headers, request.messages, request.tools)
        attribution = slot.profile.attribution(headers)
        connection.watch()
        call = self._calls.receive(slot, request, self._dialect.name, kind, attribution, self._config.linger_s)
        with call.listener():
            try:
                await Delivery(self._calls, connection, call).send(self._dialect, request, self._config)
            except (Problem, ClientGone, ConnectionResetError):
                raise
            except (Exception, SystemExit) as error:  # a fault of ours loses the reply to the harness
                problem = call_lost(slot, "gateway", error)
                slot.failed(call, problem)
                raise problem from error


class CountRoute(_Route):
    """Counts a prompt's tokens. Not a call: it samples, records and charges nothing."""

    def __init__(self, dialect: CountingDialect, service: Service, action: str = "countTokens") -> None:
        super().__init__(dialect, service, action)
        self._counting = dialect

    def _refused(self, slot: OpenSlot, problem: Problem) -> None:
        """Not recorded: a harness goes on without a count."""

    async def _serve(
        self, slot: OpenSlot, connection: Connection, request: ChatRequest, headers: dict[str, str]
    ) -> None:
        tokens = await self._calls.count(slot, request)
        await connection.respond(200, self._counting.count(tokens), {})
