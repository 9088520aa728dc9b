"""Texts of single tokens. A character that several tokens make up stands at the first of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from polar.dashboard.spelling import Spelling
from polar.types import TokenIds, token_ids

BROKEN = "\ufffd"
LONGEST_CHARACTER = 8
"""Tokens tried for one character; an emoji has four bytes, and rarely a token more."""


class SpelledTokens:
    """The vocabulary of one page: pairs of id and text, numbered in the order in which they are met."""

    def __init__(self, spell: Spelling) -> None:
        self._spell = spell
        self._numbers: dict[tuple[int, str], int] = {}
        self._alone: dict[int, str] = {}
        self._anchor: TokenIds | None = None
        self._anchor_text = ""

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self._numbers]

    @property
    def ids(self) -> TokenIds:
        return token_ids(token_id for token_id, _ in self._numbers)

    def words(self, ids: TokenIds) -> array[int]:
        """The number of each token's pair."""
        pairs = zip(ids, self._texts_of(ids), strict=True)
        return array("I", [self._numbers.setdefault(pair, len(self._numbers)) for pair in pairs])

    def _texts_of(self, ids: TokenIds) -> Iterator[str]:
        position = 0
        while position < len(ids):
            text, size = self._next(ids, position)
            yield text
            yield from [""] * (size - 1)
            position += size

    def _next(self, ids: TokenIds, position: int) -> tuple[str, int]:
        """The text at `position`, and of how many tokens it is."""
        alone = self._text_alone(ids[position])
        if BROKEN not in alone:
            return alone, 1
        for size in range(2, min(LONGEST_CHARACTER, len(ids) - position) + 1):
            text = self._spell(ids[position : position + size])
            if BROKEN not in text:
                return text, size
        return alone, 1

    def _text_alone(self, token_id: int) -> str:
        if token_id not in self._alone:
            self._alone[token_id] = self._after_another(token_ids([token_id]))
        return self._alone[token_id]

    def _after_another(self, ids: TokenIds) -> str:
        """Some tokenizers leave out a space at the beginning of a text, so no text begins with the token."""
        alone = self._spell(ids)
        if self._anchor is None and alone and BROKEN not in alone:
            self._anchor = ids
            self._anchor_text = self._spell(ids)
        if self._anchor is None:
            return alone
        together = self._spell(self._anchor + ids)
        return together.removeprefix(self._anchor_text) if together.startswith(self._anchor_text) else alone
