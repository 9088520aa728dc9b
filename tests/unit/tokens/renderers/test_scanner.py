"""Piece by piece, a scanner finds what its pattern finds in the whole text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tokens.renderers import encoder
from polar.tokens.renderers.encoder import Scanner

NAMES = ("<|im_start|>", "<|im_end|>", "<|im", "<b>", "aab")
PATTERN = re.compile("|".join(map(re.escape, sorted(NAMES, key=len, reverse=True))))
LONGEST = max(map(len, NAMES))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "PIECE_CHARACTERS", 5)


@given(st.lists(st.sampled_from([*NAMES, "<", "a", "|", "<|im_", " text "]), max_size=30).map("".join))
def test_split_and_search_are_those_of_the_pattern(text: str) -> None:
    scanner = Scanner(PATTERN, LONGEST)
    assert scanner.split(text) == re.split(f"({PATTERN.pattern})", text)
    whole = PATTERN.search(text)
    found = scanner.search(text)
    assert (found and found.span()) == (whole and whole.span())


@given(st.lists(st.sampled_from([*NAMES, "<", "a", "|"]), max_size=30).map("".join))
def test_replacing_is_that_of_the_pattern(text: str) -> None:
    first = re.compile(f"(?={PATTERN.pattern}).", re.DOTALL)
    by = {"<": "X", "a": "Y"}
    assert Scanner(first, LONGEST).replace(text, by) == first.sub(lambda found: by[found[0]], text)
