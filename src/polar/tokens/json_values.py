"""Counts the values of a JSON text before it is parsed.

A parser holds the interpreter lock until it is done, and a megabyte of `[],[],[]` takes it a hundred times as long
as a megabyte of text. Counting goes piece by piece, so that other threads run in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PIECE_BYTES = 2**18


class ValueCount(NamedTuple):
    """Also for text that is no valid JSON."""

    containers: int
    """Lists and objects, which take longer to build than numbers and texts."""
    values: int
    """Values of any type, counted by commas and opening brackets."""

    def within(self, most: ValueCount) -> bool:
        return self.containers <= most.containers and self.values <= most.values

    def plus(self, other: ValueCount) -> ValueCount:
        return ValueCount(self.containers + other.containers, self.values + other.values)


def most_possible(text: bytes) -> ValueCount:
    """A cheap upper bound: what is inside strings is counted too."""
    containers = text.count(b"[") + text.count(b"{")
    return ValueCount(containers, containers + text.count(b","))


def count_values(text: bytes, most: ValueCount) -> ValueCount:
    """The exact count. Stops early once it is beyond `most`."""
    found = ValueCount(0, 0)
    for outside in _outside_strings(text):
        found = found.plus(most_possible(outside))
        if not found.within(most):
            break
    return found


def holds_more_values(text: str, limit: int) -> bool:
    if len(text) <= limit:
        return False
    data = text.encode("utf-8", "surrogatepass")
    most = ValueCount(len(data), limit)
    return most_possible(data).values > limit and not count_values(data, most).within(most)


def _outside_strings(text: bytes) -> Iterator[bytes]:
    inside, start = False, 0
    while start < len(text):
        end = _end_of_piece(text, start)
        # An escaped quote does not end a string; an escaped backslash escapes nothing.
        parts = text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0
        start = end


def _end_of_piece(text: bytes, start: int) -> int:
    """Never between a backslash and the character it escapes."""
    end = min(start + PIECE_BYTES, len(text))
    whole = text[start:end].rstrip(b"\\")
    backslashes = end - start - len(whole)
    return end - backslashes % 2 if end < len(text) and backslashes < end - start else end
