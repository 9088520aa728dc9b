"""Events are put together from any pieces, with either line end."""

from __future__ import annotations

import pytest

from polar.sse import EventParser


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_put_together_from_any_pieces(end: bytes, size: int) -> None:
    lines = [
        b": hello",
        b"",
        b"id: 1",
        b"event: task",
        b"data: one",
        b"",
        b"data:two",
        b"data: lines",
        b"",
        b"data: cut",
    ]
    text = end.join(lines)
    parser = EventParser()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    assert [data for piece in pieces for data in parser.feed(piece)] == [b"one", b"two\nlines"]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_events_of_one_line_each(size: int) -> None:
    text = b': ping\n\ndata: {"a": 1}\n\ndata:two\n\n\ndata: three\n\ndata: [DONE]\n\ndata: cut\n'
    parser = EventParser()
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    assert [data for chunk in chunks for data in parser.feed(chunk)] == [b'{"a": 1}', b"two", b"three", b"[DONE]"]
    assert parser.unfinished_bytes == len(b"data: cut\n")
