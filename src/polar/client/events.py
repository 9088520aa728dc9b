"""The server's events (text/event-stream), resumed after a lost connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import ValidationError

from polar.client.retries import Retrier, ServerError
from polar.client.transport import Request, Transport
from polar.types import Event

SILENCE_S = 50.0
"""The server sends at least a comment every 15 s; after three missed ones the connection is dead."""


class EventParser:
    """Bytes, cut anywhere, to the data of whole messages."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [data for line in lines if (data := self._take(line.removesuffix(b"\r"))) is not None]

    def _take(self, line: bytes) -> bytes | None:
        """A message's data when the line ends it. Cursor and kind stand in it too, so nothing else is read."""
        if line.startswith(b"data:"):
            self._data.append(line.removeprefix(b"data:").removeprefix(b" "))
        if line or not self._data:
            return None
        data, self._data = b"\n".join(self._data), []
        return data


async def follow_events(transport: Transport, after: int) -> AsyncGenerator[Event]:
    """Endless; each event once, whatever happens to the connection."""
    retrier, cursor = Retrier(transport.retry), after
    while True:
        try:
            async with aclosing(_events_once(transport, cursor, retrier)) as events:
                async for event in events:
                    if event.cursor > cursor:
                        cursor = event.cursor
                        yield event
            broken = transport.no_answer("the stream of events ended")
        except ServerError as error:
            broken = error
        await retrier.wait(broken)


async def _events_once(transport: Transport, cursor: int, retrier: Retrier) -> AsyncGenerator[Event]:
    request = Request(
        "GET",
        "/v1/events",
        {"after": cursor},
        accept="text/event-stream",
        headers={"Last-Event-ID": str(cursor)},
        silence_s=SILENCE_S,
    )
    parser = EventParser()
    async with aclosing(transport.stream(request)) as chunks:
        async for chunk in chunks:
            retrier.reset()
            for data in parser.feed(chunk):
                try:
                    event = Event.model_validate_json(data)
                except ValidationError as error:
                    raise transport.unreadable("/v1/events", error) from error
                yield event
