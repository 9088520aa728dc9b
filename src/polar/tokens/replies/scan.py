"""Looking for names in a long text, piece by piece: one search holds the interpreter until it is done."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_CHARACTERS = 2**16


class Scanner:
    """Finds what a pattern finds, where that is never longer than `longest`."""

    def __init__(self, pattern: re.Pattern[str], longest: int) -> None:
        self.pattern = pattern
        self._longest = longest

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        while start < len(text):
            end = start + PIECE_CHARACTERS
            found = self.pattern.search(text, start, end + self._longest)
            if found and (found.start() < end or end >= len(text)):
                return found
            start = end
        return None

    def split(self, text: str) -> list[str]:
        """The text around the matches and the matches, in turn."""
        parts, start = list[str](), 0
        for found in self._each(text):
            parts += [text[start : found.start()], found[0]]
            start = found.end()
        return [*parts, text[start:]]

    def replace(self, text: str, by: dict[str, str]) -> str:
        return "".join(by[part] if index % 2 else part for index, part in enumerate(self.split(text)))

    def _each(self, text: str) -> Iterator[re.Match[str]]:
        found = self.search(text)
        while found:
            yield found
            found = self.search(text, found.end())
