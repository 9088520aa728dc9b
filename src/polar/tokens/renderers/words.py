"""Ids of a text by its words, which are remembered: most words of a tool's output have been seen before.

A byte-level tokenizer cuts text into words and encodes each by itself, so the ids of a text are those of its
words in a row. Cutting the text here and looking its words up takes a fifth of what the library needs, and about
half of it where every word is new. It is done for tokenizers that cut in one of the ways below, and for ASCII text
in which no added token is spelled; the library encodes everything else.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

MOST_CHARACTERS = 2**13
"""Of a text: this holds the interpreter, for about a millisecond at this size, where the library lets go of it."""
LONGEST_WORD = 128
"""A text with a longer new one is left to the library: such words hardly come twice."""
MOST_SIZE = 2**20
"""Of what is known, in characters, with `WORD_SIZE` more for each word: then all is forgotten. It takes 15 MB, and
40 MB where each character is a token of its own."""
WORD_SIZE = 16

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}"
DIGITS, GPT2, BYTES = "digits", "gpt2", "bytes"

ASCII_CONTRACTIONS = r"'(?:[stmd]|re|ve|ll)"
ASCII_REST = r" ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS: dict[tuple[str, ...], str] = {
    (GPT2,): rf"{ASCII_CONTRACTIONS}| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+",
    # Each digit is a text of its own before the others are cut, so white space before one is at an end.
    (DIGITS, GPT2): rf"{ASCII_CONTRACTIONS}| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+",
    (QWEN2, BYTES): rf"(?i:{ASCII_CONTRACTIONS})|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]|{ASCII_REST}",
    (LLAMA3, BYTES): rf"(?i:{ASCII_CONTRACTIONS})|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{{1,3}}|{ASCII_REST}",
}
"""How ASCII text is cut, by the steps of a tokenizer's own cut."""
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
BYTE_LETTERS = dict(enumerate(_BYTES.pre_tokenize_str(chr(code))[0][0] for code in range(128)))
"""The letters by which byte-level models spell ASCII characters."""


class Words:
    """Of one tokenizer. Threads may share it: a word that two of them learn is learnt twice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._model: Any = tokenizer.model
        self._cut = _cut_of(tokenizer)
        added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        self._added = re.compile("|".join(map(re.escape, added)) or r"(?!)")
        self._known: dict[str, list[int]] = {}
        self._size = 0

    def ids(self, text: str) -> list[int] | None:
        """None: it is for the library to encode."""
        if self._cut is None or len(text) > MOST_CHARACTERS or not text.isascii() or self._added.search(text):
            return None
        words, known = self._cut.findall(text), self._known
        new = [word for word in dict.fromkeys(words) if word not in known]
        if new:
            if max(map(len, new)) > LONGEST_WORD:
                return None
            known.update((word, self._encoded(word)) for word in new)
            self._grow(sum(map(len, new)) + len(new) * WORD_SIZE)
        return list(chain.from_iterable(map(known.__getitem__, words)))

    def _encoded(self, word: str) -> list[int]:
        return [token.id for token in self._model.tokenize(word.translate(BYTE_LETTERS))]

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > MOST_SIZE:
            self._known, self._size = {}, 0


def _cut_of(tokenizer: Any) -> re.Pattern[str] | None:
    """None: unknown, or something beside it changes ids by what stands around a word."""
    plain = tokenizer.normalizer is None or isinstance(tokenizer.normalizer, normalizers.NFC)  # ASCII is composed
    steady = isinstance(tokenizer.model, models.BPE) and not tokenizer.model.dropout
    if not plain or not steady or tokenizer.truncation or tokenizer.padding or tokenizer.pre_tokenizer is None:
        return None
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    cut = CUTS.get(tuple(map(_name_of, state.get("pretokenizers", [state]))))
    return None if cut is None else re.compile(cut, re.ASCII)


def _name_of(step: Any) -> str:
    match step:
        case {"type": "Digits", "individual_digits": True}:
            return DIGITS
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": cuts}:
            return GPT2 if cuts else BYTES
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False}:
            return pattern
        case _:
            return ""
