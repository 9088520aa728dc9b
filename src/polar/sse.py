"""Server-sent events: from bytes, cut anywhere, to the data of whole events, and from data to bytes."""

from __future__ import annotations

from typing import Any

import orjson


class EventParser:
    """Reads the field `data` only: the streams we follow carry everything in it."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def unfinished_bytes(self) -> int:
        """Size of the event that has not ended yet."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in this chunk."""
        received = self._rest + chunk
        if b"\r" in received:
            received = received.replace(b"\r\n", b"\n")
        ended, _, self._rest = received.rpartition(b"\n\n")
        lines = ended.split(b"\n")
        if not any(lines[1::2]):  # one line each, as engines send them
            return [line[5:].strip() for line in lines[::2] if line.startswith(b"data:")]
        return [data for event in ended.split(b"\n\n") if (data := _data_of(event))]


def _data_of(event: bytes) -> bytes:
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))


def data_event(payload: dict[str, Any]) -> bytes:
    """An event without a name."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_event(payload: dict[str, Any]) -> bytes:
    """An event named by its `type`."""
    return b"event: " + str(payload["type"]).encode() + b"\n" + data_event(payload)
