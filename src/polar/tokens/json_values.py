"""How many values a JSON text holds, counted before anything is made of it.

A parser holds the interpreter for as long as it runs, and a megabyte of `[],[],[]` takes it a hundred times as
long as a megabyte of text. Counting goes piece by piece, so that others run in between.
"""

from __future__ import annotations

from collections.abc import Iterator

PIECE_BYTES = 2**18
VALUES, CONTAINERS = (b",", b"[", b"{"), (b"[", b"{")


def holds_more_values(text: bytes, limit: int) -> bool:
    """Whether it has more than `limit` values, counted by commas and by what opens a list or an object. What is no
    JSON is counted all the same."""
    return _holds_more(text, VALUES, limit)


def holds_more_containers(text: bytes, limit: int) -> bool:
    """The same of lists and objects, which take longer to make than numbers and texts."""
    return _holds_more(text, CONTAINERS, limit)


def _holds_more(text: bytes, marks: tuple[bytes, ...], limit: int) -> bool:
    if len(text) <= limit or _count(text, marks) <= limit:
        return False
    found = 0
    for outside in _outside_strings(text):
        found += _count(outside, marks)
        if found > limit:
            return True
    return False


def _count(text: bytes, marks: tuple[bytes, ...]) -> int:
    return sum(text.count(mark) for mark in marks)


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
