"""Splits a template into text, values and tags."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from plume.errors import TemplateError

PIECE = re.compile(r"\{\{(-?)(.*?)(-?)\}\}|\{%(-?)(.*?)(-?)%\}|\{#.*?#\}", re.DOTALL)
"""A value, a tag or a comment, with the signs that remove white space."""


@dataclass(frozen=True)
class Piece:
    kind: str
    """text, value or tag."""
    text: str
    line: int


def scan(source: str, name: str) -> Iterator[Piece]:
    position, trims = 0, False
    for found in PIECE.finditer(source):
        text = source[position : found.start()]
        text = text.lstrip() if trims else text
        trims_before = "-" in (found[1], found[4])
        yield from _text(text.rstrip() if trims_before else text, source, position, name)
        line = source.count("\n", 0, found.start()) + 1
        if found[2] is not None:
            yield Piece("value", found[2].strip(), line)
        elif found[5] is not None:
            yield Piece("tag", found[5].strip(), line)
        trims = "-" in (found[3], found[6])
        position = found.end()
    rest = source[position:]
    yield from _text(rest.lstrip() if trims else rest, source, position, name)


def _text(text: str, source: str, position: int, name: str) -> Iterator[Piece]:
    line = source.count("\n", 0, position) + 1
    for opening in ("{{", "{%", "{#"):
        if opening in text:
            raise TemplateError(f"{opening} is not closed", name, line + text[: text.index(opening)].count("\n"))
    if text:
        yield Piece("text", text, line)
