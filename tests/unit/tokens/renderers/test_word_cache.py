"""Words that are remembered: a text that is looked up has the ids that the library gives it."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_families import LLAMA, QWEN3, QWEN25, SMOLLM2, RealFamily, loaded, tokenizer_folder
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from polar.errors import ConfigError, HarnessError
from polar.tokens.renderers import encoder
from polar.tokens.renderers.encoder import LONGEST_WORD, MOST_CACHED_CHARACTERS, WordCache

LETTERS = "aZ0 5\n\r\t\x0b\x0c\x01'sLl.,<|_-/\x7f"
PIECES = [
    "'s",
    "'LL",
    "'ve",
    " the",
    "  ",
    "\r\n",
    "\n\n\n",
    " \n ",
    "1234567",
    "foo(bar)",
    "==",
    "...\n",
    "\t\tif",
    "x1",
]


@cache
def tokenizer_of(which: RealFamily) -> Tokenizer:
    try:
        if which is SMOLLM2:
            renderer: Any = loaded(SMOLLM2)
            return renderer._vocabulary.encoder._tokenizer
        return Tokenizer.from_file(str(asyncio.run(tokenizer_folder(which)) / "tokenizer.json"))
    except (HarnessError, ConfigError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", autouse=True)
def no_tokenizer_is_kept() -> Iterator[None]:
    yield
    tokenizer_of.cache_clear()


@cache
def gpt2() -> Tokenizer:
    """Cut as GPT-2 cuts, with no merges: the ids of a text are those of its bytes."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("a", "a"), ("Ġ", "a"), ("1", "2"), ("Ġ", "Ġ"), (".", ".")]
    vocabulary = {**alphabet, **{a + b: len(alphabet) + n for n, (a, b) in enumerate(merges)}}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def by_library(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("which", [SMOLLM2, QWEN3, QWEN25, LLAMA], ids=str)
@given(text=st.lists(st.sampled_from([*LETTERS, *PIECES]), max_size=60).map("".join))
def test_any_text_has_the_ids_of_the_library(which: RealFamily, text: str) -> None:
    tokenizer, known = tokenizer_of(which), WordCache(tokenizer_of(which))
    assert known.ids(text) == known.ids(text) == by_library(tokenizer, text)


@given(text=st.lists(st.sampled_from([*LETTERS, *PIECES]), max_size=60).map("".join))
def test_so_does_any_text_cut_as_gpt2_cuts(text: str) -> None:
    assert WordCache(gpt2()).ids(text) == by_library(gpt2(), text)


@pytest.mark.parametrize("which", [SMOLLM2, QWEN3, QWEN25, LLAMA], ids=str)
def test_source_code_has_the_ids_of_the_library(which: RealFamily) -> None:
    tokenizer, known = tokenizer_of(which), WordCache(tokenizer_of(which))
    source = inspect.getsource(random) + inspect.getsource(inspect)
    for start in range(0, len(source), 700):
        text = source[start : start + 700]
        assert known.ids(text) == by_library(tokenizer, text)


@pytest.mark.parametrize("text", ["naïve", "漢字", "a\u2028b", "before <|im_end|> after"])
def test_text_beyond_ascii_and_added_tokens_are_left_to_the_library(text: str) -> None:
    known = WordCache(tokenizer_of(SMOLLM2))
    assert [known.ids(text) for _ in range(3)] == [None] * 3


def test_long_texts_and_long_words_are_left_to_the_library() -> None:
    known = WordCache(tokenizer_of(SMOLLM2))
    assert known.ids("ab " * MOST_CACHED_CHARACTERS) is None
    assert known.ids("a" * (LONGEST_WORD + 1)) is None
    assert known.ids("a" * LONGEST_WORD) is not None


def test_all_is_forgotten_when_too_much_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "MOST_SIZE", 400)
    tokenizer, known = tokenizer_of(SMOLLM2), WordCache(tokenizer_of(SMOLLM2))
    for number in range(200):
        text = f"some words of file{chr(97 + number % 26)}{chr(97 + number // 26)}"
        assert known.ids(text) == by_library(tokenizer, text)
        assert len(known._known) < 400 // encoder.WORD_SIZE  # pyright: ignore[reportPrivateUsage]


def _with_prefix_space(tokenizer: Any) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


def _lower(tokenizer: Any) -> None:
    tokenizer.normalizer = normalizers.Lowercase()


def _truncated(tokenizer: Any) -> None:
    tokenizer.enable_truncation(3)


def _cut_in_an_unknown_way(tokenizer: Any) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), tokenizer.pre_tokenizer])


@pytest.mark.parametrize("change", [_with_prefix_space, _lower, _truncated, _cut_in_an_unknown_way])
def test_a_tokenizer_that_is_not_known_is_left_alone(change: Any) -> None:
    tokenizer = Tokenizer.from_str(gpt2().to_str())
    assert WordCache(tokenizer).ids("a a") is not None
    change(tokenizer)
    assert WordCache(tokenizer).ids("a a") is None


def test_a_word_that_is_an_added_token_is_left_to_the_library() -> None:
    tokenizer: Any = Tokenizer.from_str(gpt2().to_str())
    tokenizer.add_tokens([AddedToken("needle", normalized=False)])
    assert WordCache(tokenizer).ids("a needle") is None
    assert WordCache(tokenizer).ids("a noodle") is not None
