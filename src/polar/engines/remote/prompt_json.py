"""Prompts as JSON for an inference server, each id written once for all the prompts of a session that begin alike.

A prompt goes on from the one before, and writing 80,000 numbers takes longer than all the rest of a call. A server
gets exactly the bytes that `orjson` would write for the whole list: a written prompt is used only where the ids
of the next one begin with its ids.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import orjson

from polar.types import TokenIds

Prompt = orjson.Fragment | list[int]
"""Ids, written or not."""
SHORT_TOKENS = 512
"""Prompts up to this length are written anew each time and not kept."""
MOST_PROMPTS = 8
"""Kept of one session, whose sub-agents take turns."""
MOST_BYTES = 256 * 2**20
"""Kept of all sessions together, those asked least recently given up first: about 10 bytes a token."""


class Written(NamedTuple):
    ids: bytes
    """As the array holds them."""
    json: bytes
    """A list of numbers."""

    @property
    def size_bytes(self) -> int:
        return len(self.ids) + len(self.json)


class PromptJson:
    """Of one engine."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._sessions: OrderedDict[str, list[Written]] = OrderedDict()
        """Prompts by session, the latest first; sessions in the order they were last asked for."""
        self.size_bytes = 0

    def write(self, session_id: str, ids: TokenIds) -> orjson.Fragment:
        if len(ids) <= SHORT_TOKENS:
            return orjson.Fragment(orjson.dumps(ids.tolist()))
        kept = self._sessions.pop(session_id, [])
        given = ids.tobytes()
        begun = [written for written in kept if given.startswith(written.ids)]
        longest = max(begun, key=lambda written: len(written.ids), default=None)
        written = Written(given, _json(ids, longest))
        rest = [other for other in kept if other is not longest][: MOST_PROMPTS - 1]
        self._sessions[session_id] = [written, *rest]
        self.size_bytes += _size_bytes(self._sessions[session_id]) - _size_bytes(kept)
        while self.size_bytes > self._most_bytes:
            self.size_bytes -= _size_bytes(self._sessions.popitem(last=False)[1])
        return orjson.Fragment(written.json)


def _json(ids: TokenIds, begun: Written | None) -> bytes:
    """The ids as a list; `begun` has the first of them."""
    if begun is None:
        return orjson.dumps(ids.tolist())
    new_ids = ids[len(begun.ids) // ids.itemsize :]
    if not new_ids:
        return begun.json
    return b"".join((memoryview(begun.json)[:-1], b",", memoryview(orjson.dumps(new_ids.tolist()))[1:]))


def _size_bytes(prompts: list[Written]) -> int:
    return sum(written.size_bytes for written in prompts)
