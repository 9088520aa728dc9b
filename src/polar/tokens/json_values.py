"""How many values a JSON text holds, counted before anything is made of it.

A parser holds the interpreter for as long as it runs, and a megabyte of `[],[],[]` takes it a hundred times as
long as a megabyte of text. Counting goes piece by piece, so that others run in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PIECE_BYTES = 2**18


class ValueCount(NamedTuple):
    """What a JSON text holds. What is no JSON is counted all the same."""

    containers: int
    """Lists and objects, which take longer to make than numbers and texts."""
    values: int
    """Of any kind, counted by commas and by what opens a list or an object."""

    def within(self, most: ValueCount) -> bool:
        return self.containers <= most.containers and self.values <= most.values

    def plus(self, other: ValueCount) -> ValueCount:
        return ValueCount(self.containers + other.containers, self.values + other.values)


def most_possible(text: bytes) -> ValueCount:
    """An upper bound, for little: what stands inside of strings is counted too."""
    containers = text.count(b"[") + text.count(b"{")
    return ValueCount(containers, containers + text.count(b","))


def count_values(text: bytes, most: ValueCount) -> ValueCount:
    """The exact count; where that is beyond `most`, at least so much."""
    found = ValueCount(0, 0)
    for outside in _outside_strings(text):
        found = found.plus(most_possible(outside))
        if not found.within(most):
            break
    return found


def holds_more_values(text: bytes, limit: int) -> bool:
    """Whether it has more than `limit` values."""
    if len(text) <= limit or most_possible(text).values <= limit:
        return False
    most = ValueCount(len(text), limit)
    return not count_values(text, most).within(most)


def _outside_strings(text: bytes) -> Iterator[bytes]:
    inside, start = False, 0
    while start < len(text):
        end = _end_of_piece(text, start)
        # An escaped quote ends no string; an escaped backslash escapes nothing.
        parts = text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0
        start = end


def _end_of_piece(text: bytes, start: int) -> int:
    """Not between a backslash and what it escapes."""
    end = min(start + PIECE_BYTES, len(text))
    whole = text[start:end].rstrip(b"\\")
    backslashes = end - start - len(whole)
    return end - backslashes % 2 if end < len(text) and backslashes < end - start else end
