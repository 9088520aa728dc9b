"""Texts of single tokens, for tokenizers whose tokens are bytes and for those that eat a leading space."""

from __future__ import annotations

from polar.dashboard.spelled import SpelledTokens
from polar.types import TokenIds, token_ids


def of_bytes(ids: TokenIds) -> str:
    return bytes(list(ids)).decode("utf-8", errors="replace")


def without_leading_space(ids: TokenIds) -> str:
    return "".join({1: " one", 2: " two"}[each] for each in ids).removeprefix(" ")


def texts(spelled: SpelledTokens, ids: TokenIds) -> list[str]:
    words = spelled.words(ids)
    return [spelled.texts[word] for word in words]


def test_a_character_of_several_tokens_stands_at_the_first() -> None:
    spelled = SpelledTokens(of_bytes)
    assert texts(spelled, token_ids(list("aé😀z".encode()))) == ["a", "é", "", "😀", "", "", "", "z"]


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert texts(SpelledTokens(of_bytes), token_ids([255, 97])) == ["\ufffd", "a"]


def test_a_pair_of_id_and_text_is_kept_once() -> None:
    spelled = SpelledTokens(of_bytes)
    assert list(spelled.words(token_ids(list(b"abab")))) == [0, 1, 0, 1]
    assert (spelled.texts, list(spelled.ids)) == (["a", "b"], [97, 98])


def test_a_leading_space_is_not_lost() -> None:
    spelled = SpelledTokens(without_leading_space)
    assert texts(spelled, token_ids([2, 1, 2])) == [" two", " one", " two"]
