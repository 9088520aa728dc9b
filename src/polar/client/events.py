"""The server's events as they happen: a text/event-stream that is taken up again where it broke off."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import ValidationError

from polar.client.retries import Patience, ServerError
from polar.client.transport import Request, Transport
from polar.sse import EventParser
from polar.types import Event

SILENCE_S = 50.0
"""The server says something every 15 s, if only a comment; after three missed ones the connection is dead."""


async def follow_events(transport: Transport, after: int) -> AsyncGenerator[Event]:
    """Without end; each event once, whatever happens to the connection."""
    patience, cursor = Patience(transport.retry), after
    while True:
        try:
            async with aclosing(_events_once(transport, cursor, patience)) as events:
                async for event in events:
                    if event.cursor > cursor:
                        cursor = event.cursor
                        yield event
            broken = transport.no_answer("the stream of events ended")
        except ServerError as error:
            broken = error
        await patience.bear(broken)


async def _events_once(transport: Transport, cursor: int, patience: Patience) -> AsyncGenerator[Event]:
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
            patience.reset()
            for data in parser.feed(chunk):
                try:
                    event = Event.model_validate_json(data)
                except ValidationError as error:
                    raise transport.unreadable("/v1/events", error) from error
                yield event
