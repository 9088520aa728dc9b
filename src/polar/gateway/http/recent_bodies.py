"""The newest request bodies of a session: what the next one repeats is neither decoded nor digested again.

A harness sends its whole history with every call. The next body mostly begins with the bytes of the one before, up
to the end of some item of the history; those items are known, and only the rest is decoded, with one word in their
place. It is exact: an item is taken over only where all bytes before and in it are equal, and the word must come
out as the first item of the history (docs/design/recent-bodies.md). Everything else is decoded as a whole.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec

from polar.gateway.dialects.base import HistoryItem, Problem
from polar.gateway.dialects.fields import read_object
from polar.gateway.http.bodies import check_count, possible_count
from polar.tokens.json_values import ValueCount, most_possible

MOST_BODIES = 8
"""Conversations of one session that take turns, such as sub-agents."""
MOST_BYTES = 4 * 2**20
"""Of all bodies that a session keeps. They are compared on the event loop: a millisecond at most."""
MOST_ITEMS = 2**13
"""Of a history whose body is kept."""

MOST_OPENINGS = 16
"""Lists under the history's name that are tried, wherever they stand in a body."""

_BETWEEN = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_RAW_ITEMS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


class KnownBody(NamedTuple):
    """A body that was read, and where the items of its history stand in it."""

    body: bytes
    start: int
    """Of the first item."""
    ends: list[int]
    """Of each item."""
    items: tuple[HistoryItem, ...]
    holds: ValueCount
    """At most."""

    def shared_items(self, body: bytes) -> int:
        """How many items another body begins with: the same to the byte, with all that stands before them."""
        known = memoryview(self.body)
        if body.startswith(known[: self.ends[-1]]):
            return len(self.ends)
        return bisect_left(self.ends, True, key=lambda end: not body.startswith(known[:end]))


class Shared(NamedTuple):
    """What a body has in common with one that is known."""

    known: KnownBody
    items: int
    """At least one."""

    @property
    def end(self) -> int:
        return self.known.ends[self.items - 1]


class ReadBody(NamedTuple):
    data: dict[str, Any]
    values: list[Any] | None = None
    """The history in `data`, where its items are known."""
    items: tuple[HistoryItem, ...] = ()


class RecentBodies:
    """Of one session and one dialect. Safe to use from several threads: what is kept is replaced as a whole."""

    def __init__(self, history_field: str) -> None:
        self._field = history_field
        self._word = secrets.token_hex(16)
        """Nobody outside can know it, so it is in no body."""
        self._quoted = f'"{self._word}"'.encode()
        self._opening = re.compile(rb'"%s"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*' % history_field.encode())
        self._kept: tuple[KnownBody, ...] = ()
        """The latest first."""

    @property
    def size_bytes(self) -> int:
        return sum(len(known.body) for known in self._kept)

    def shared(self, body: bytes) -> Shared | None:
        found = [Shared(known, known.shared_items(body)) for known in self._kept]
        longest = max(found, key=lambda shared: shared.items, default=None)
        return longest if longest and longest.items else None

    def read(self, body: bytes, most_values: int, shared: Shared | None) -> ReadBody:
        """`shared`: of this very body. Raises `Problem`."""
        found = self._read_rest(body, most_values, shared) if shared else None
        return found or self._read_whole(body, most_values)

    def _read_whole(self, body: bytes, most_values: int) -> ReadBody:
        holds = check_count(body, possible_count(body), most_values)
        data = read_object(body)
        values: Any = data.get(self._field) if self._field else None
        if not isinstance(values, list) or not values:
            return ReadBody(data)
        items = tuple(map(HistoryItem, cast("list[Any]", values)))
        if len(items) <= MOST_ITEMS and len(body) <= MOST_BYTES:
            start, ends = self._find_items(body, len(items))
            if ends:
                self._keep(KnownBody(body, start, ends, items, holds), None)
        return ReadBody(data, cast("list[Any]", values), items)

    def _read_rest(self, body: bytes, most_values: int, shared: Shared) -> ReadBody | None:
        """Decodes what comes after the shared items. None where that is not the rest of their list."""
        known, start = shared.known, shared.known.start
        rest = b"".join((memoryview(body)[:start], self._quoted, memoryview(body)[shared.end :]))
        holds = check_count(body, known.holds.plus(most_possible(rest)), most_values)
        try:
            data = read_object(rest)
        except Problem:
            return None
        values: Any = data.get(self._field)
        if not isinstance(values, list) or not values or values[0] != self._word:
            return None
        old, new = known.items[: shared.items], cast("list[Any]", values)[1:]
        values[:1] = [item.value for item in old]
        items = (*old, *map(HistoryItem, new))
        if len(items) <= MOST_ITEMS and len(body) <= MOST_BYTES:
            _, new_ends = self._find_items(rest, len(new) + 1, start)
            moved = shared.end - start - len(self._quoted)
            ends = [*known.ends[: shared.items], *(end + moved for end in new_ends[1:])]
            if new_ends:
                self._keep(KnownBody(body, start, ends, items, holds), shared)
        return ReadBody(data, cast("list[Any]", values), items)

    def _find_items(self, text: bytes, count: int, start: int | None = None) -> tuple[int, list[int]]:
        """Where the first item of the history stands and where each one ends; none where that is not plain."""
        try:
            raw = _RAW_ITEMS.decode(_RAW_FIELDS.decode(text)[self._field])
        except (msgspec.MsgspecError, KeyError, RecursionError):
            return -1, []
        if len(raw) != count:
            return -1, []
        texts = list(map(bytes, raw))
        openings = islice(self._opening.finditer(text), MOST_OPENINGS)
        for first in [start] if start is not None else [opening.end() for opening in openings]:
            if ends := _ends(text, first, texts):
                return first, ends
        return -1, []

    def _keep(self, body: KnownBody, shared: Shared | None) -> None:
        """In place of the body it goes on from, unless it has less than half of that: a history that was cut may
        go on at both ends."""
        replaced = shared.known if shared and 2 * shared.items >= len(shared.known.items) else None
        kept, room_bytes = [body], MOST_BYTES - len(body.body)
        for known in self._kept:
            room_bytes -= len(known.body) if known is not replaced else 0
            if known is not replaced and room_bytes >= 0:
                kept.append(known)
        self._kept = tuple(kept[:MOST_BODIES])


def _ends(text: bytes, start: int, items: list[bytes]) -> list[int]:
    """Where each item ends, the first of which should stand at `start`; none where they stand elsewhere."""
    ends = list[int]()
    for item in items:
        if not text.startswith(item, start):
            return []
        ends.append(start + len(item))
        gap = _BETWEEN.match(text, ends[-1])
        start = gap.end() if gap else -1
    return ends
