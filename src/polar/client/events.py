"""The server's events (text/event-stream), resumed after a lost connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import ValidationError

from polar.client.retries import Retrier, ServerError
from polar.client.transport import Request, Transport
from polar.sse import EventParser
from polar.types import Event

SILENCE_S = 50.0
"""The server sends at least a comment every 15 s; after three missed ones the connection is dead."""


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
