"""The model routes: from an HTTP request to a served call, in any dialect.

The path picks the dialect, the key picks the session. Streaming or not, the order is the same: refuse what must be
refused, sample, journal, send the end, and only then say that the harness has it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.datastructures import QueryParams

from polar.config import GatewayConfig
from polar.gateway.calls.call_service import Exchange
from polar.gateway.calls.delivery import ClientGone, Delivery
from polar.gateway.calls.generation import Asked, Generation
from polar.gateway.calls.sampling import call_lost
from polar.gateway.calls.threads import CallThreads
from polar.gateway.dialects.base import ChatRequest, Dialect, Problem, RawRequest, too_deep
from polar.gateway.dialects.fields import first_image
from polar.gateway.http.bodies import MOST_VALUES, may_hold_lone, readable_arguments, sound_text, unpacked
from polar.gateway.http.connection import LINE, Connection, Receive, Send
from polar.gateway.slots import OpenSlot, SlotTable, sealed_problem

LISTENER_OF = "polar.listener"
"""In the scope of a request that came through a session's own socket: whose it is."""
SHORT_BODY_BYTES = 2**18
"""Longer bodies are read in a thread: other sessions' tokens do not wait for a megabyte of JSON."""

SHORT_PACKED_BYTES = 2**12
"""The same for packed ones, which may be a thousand times as long once they are unpacked."""


class RequestHead(NamedTuple):
    """What a request says before its body."""

    headers: dict[str, str]
    """The first of each name, in lower case."""
    query: dict[str, str]
    door: str | None
    """Whose socket it came through, where that is a session's own."""

    @classmethod
    def of(cls, scope: Any) -> RequestHead:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        query = scope["query_string"]
        return cls(headers, dict(QueryParams(query)) if query else {}, scope.get(LISTENER_OF))

    @property
    def key(self) -> str:
        """Where one of the providers' clients puts it."""
        bearer = self.headers.get("authorization", "")
        if bearer[:7].lower() == "bearer ":
            return bearer[7:].strip()
        return self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or self.query.get("key", "")


def authenticate(slots: SlotTable, head: RequestHead) -> OpenSlot:
    """The slot of the request's key. A key that was carried into another session opens nothing there."""
    slot = slots.find(head.key)
    if slot is None or head.door not in (None, slot.session_id):
        raise Problem(401, "invalid_api_key", "unknown key: use the key of the session's slot")
    return slot


class CountingDialect(Dialect, Protocol):
    """A dialect whose provider counts tokens."""

    def count(self, tokens: int) -> bytes: ...


class Service(NamedTuple):
    """What every route works with."""

    slots: SlotTable
    exchange: Exchange
    config: GatewayConfig
    threads: CallThreads


class _Route:
    """An ASGI app that serves one path in one dialect."""

    def __init__(self, dialect: Dialect, service: Service, action: str = "") -> None:
        """`action`: what requests to this path ask for, where the dialect has more than one path."""
        self._dialect = dialect
        self._action = action
        self._slots = service.slots
        self._exchange = service.exchange
        self._config = service.config
        self._threads = service.threads

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        connection = Connection(receive, send, scope.get(LINE))
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
            # A client that never ends its body is not yet served: sealing does not wait for it.
            body = await connection.read_body(self._config.max_body_bytes)
            request = await self._read(slot, body, head)
            await self._serve(slot, connection, request, head.headers)
        except Problem as problem:
            self._refused(slot, problem)
            raise
        except (ClientGone, ConnectionResetError):
            raise
        except (Exception, SystemExit) as error:  # ours, and the harness still gets an error of its provider
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
            plain = unpacked(body, encoding, self._config.max_body_bytes)
            plain, lone = sound_text(plain)
            known = recent.shared(plain) if encoding or lone else shared
            found = recent.read(plain, MOST_VALUES + self._exchange.context_tokens, known)
            request = self._parsed(RawRequest(found.data, self._action, head.query, found.values, found.items))
            request = msgspec.structs.replace(request, size_bytes=len(plain), lone_surrogates=lone)
            return readable_arguments(request) if may_hold_lone(plain) else request

        new_bytes = len(body) - (shared.end if shared else 0)
        if new_bytes <= (SHORT_PACKED_BYTES if encoding else SHORT_BODY_BYTES):
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
        asked = Asked(request, self._dialect.name, kind, slot.profile.attribution(headers))
        connection.watch()
        generation = self._exchange.ask(slot, asked, self._config.linger_s)
        delivery = Delivery(self._exchange, connection, slot, generation)
        with generation.listener(), _faults_of_delivery(slot, generation):
            if request.stream:
                await delivery.stream(self._dialect, request, self._config.heartbeat_s)
            else:
                await delivery.whole(self._dialect, request)


@contextmanager
def _faults_of_delivery(slot: OpenSlot, generation: Generation) -> Generator[None]:
    """An error of ours while a reply is written loses the call to the harness, whatever the engine did."""
    try:
        yield
    except (Problem, ClientGone, ConnectionResetError):
        raise
    except (Exception, SystemExit) as error:
        problem = call_lost(slot, "gateway", error)
        slot.failed(generation, problem)
        raise problem from error


class CountRoute(_Route):
    """Counts a prompt's tokens. Not a call: nothing is sampled, recorded or taken from a budget."""

    def __init__(self, dialect: CountingDialect, service: Service, action: str = "countTokens") -> None:
        super().__init__(dialect, service, action)
        self._counting = dialect

    def _refused(self, slot: OpenSlot, problem: Problem) -> None:
        """A harness that gets no count goes on without it."""

    async def _serve(
        self, slot: OpenSlot, connection: Connection, request: ChatRequest, headers: dict[str, str]
    ) -> None:
        tokens = await self._exchange.count(slot, request)
        await connection.respond(200, self._counting.count(tokens), {})
