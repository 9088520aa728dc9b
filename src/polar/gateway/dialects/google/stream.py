"""A streamed Google reply, as server-sent events or as one JSON array."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.base import BrokenStream, Reply, delta_kind
from polar.gateway.dialects.google.errors import error_body
from polar.gateway.dialects.google.reply import json_line, part_json, response_json
from polar.gateway.dialects.problems import Problem
from polar.types import Delta


class GoogleStream:
    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._thinks = False

    def start(self) -> bytes:
        return self._framed(response_json(self._reply, [{"text": ""}]))

    def heartbeat(self) -> bytes:
        """An empty part of the kind sent last, so that no client starts a new part for it. It has a candidate,
        because some clients take a chunk without one for a broken reply."""
        part = {"text": "", "thought": True} if self._thinks else {"text": ""}
        return self._framed(response_json(self._reply, [part]))

    def delta(self, delta: Delta) -> bytes:
        kind = delta_kind(delta)
        if not kind:
            return b""
        self._thinks = kind == "reasoning"
        return self._framed(response_json(self._reply, [part_json(delta, self._reply)]))

    def end(self, reply: Reply) -> bytes:
        return self._framed(response_json(reply, [{"text": ""}], complete=True))

    def broken(self, problem: Problem) -> BrokenStream:
        """Sends the error without an event frame: Google's clients look for it as a chunk by itself. Other clients
        do not see it and would take a body that ends normally for a complete reply, so the connection is cut."""
        return BrokenStream(json_line(error_body(problem)) + b"\r\n\r\n", clean=False)

    def _framed(self, payload: dict[str, Any]) -> bytes:
        return b"data: " + json_line(payload) + b"\r\n\r\n"


class GoogleArray(GoogleStream):
    """The same chunks as the entries of one JSON array, which is closed at the end of the reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self._before = b"["

    def end(self, reply: Reply) -> bytes:
        return super().end(reply) + b"]"

    def broken(self, problem: Problem) -> BrokenStream:
        return BrokenStream(self._framed(error_body(problem)), clean=False)

    def _framed(self, payload: dict[str, Any]) -> bytes:
        before, self._before = self._before, b",\r\n"
        return before + json_line(payload) + b"\n"
