"""Text to ids with a model's tokenizer, without holding up other sessions.

`Tokenizer.encode` holds the interpreter lock until it is done, also in a thread; its batch call releases it. A
text that cannot fit the model's context is rejected before it is encoded: encoding costs a microsecond and 180
bytes of memory for each byte of text.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import chain
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers

SHORT_CHARACTERS = 256
"""Texts up to this size are encoded without the batch call, which hands the text to another thread and back."""
PIECE_CHARACTERS = 2**16
"""Size of the pieces in which a long text is counted or searched."""
ORDINARY_CHARACTERS_PER_TOKEN = 8
"""A text with at most this many characters for each token of the context is encoded without being counted
first."""
MARGIN = 2
"""Cutting a text into pieces changes tokens near the cuts, but never doubles their number."""
NORMALISED_SHRINK = 4
"""A normaliser that composes characters shortens text at most by this factor; see docs/design/neighbours.md."""
MOST_CACHED_CHARACTERS = 2**13
"""Longer texts bypass the word cache, which holds the interpreter lock: about a millisecond at this size."""
LONGEST_WORD = 128
"""A text with a longer new word bypasses the cache: such words are rarely repeated."""
MOST_SIZE = 2**20
"""Size of the cache in characters, with `WORD_SIZE` more for each word; a full cache is emptied. It takes 15 MB,
and 40 MB if every character is a token."""
WORD_SIZE = 16
NOTHING = "(?!)"
"""A pattern that matches nowhere."""

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
"""Patterns that cut ASCII text into words, by the steps of a tokenizer's pre-tokenizer."""
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
"""How byte-level models spell bytes, since GPT-2."""


class TooLong(ValueError):
    """A text with more tokens than the context has."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the text has at least {tokens} tokens, more than the model's context")
        self.tokens = tokens
        """A lower bound."""


class TextEncoder:
    """Threads may share it: nothing changes a tokenizer after its set-up, and the tokenizer locks its own
    cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # The library's own threads gain nothing for a batch of one, and waking them costs more than a short text.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer: Any = tokenizer  # Any: its batch call is only partly typed
        self._most_tokens: int | None = None
        self._longest = _longest_token(tokenizer)
        self._words = WordCache(tokenizer)

    def bounded(self, context_tokens: int) -> TextEncoder:
        """The same for a model with this context: raises `TooLong` for a text that is certainly longer. A text
        that is only a little too long is encoded, so that the error can state its size."""
        other = copy(self)
        other._most_tokens = context_tokens
        return other

    def encode(self, text: str) -> list[int]:
        if not text:
            return []
        self._refuse_if_too_long(text)
        ids = self._words.ids(text)
        if ids is not None:
            return ids
        if len(text) <= SHORT_CHARACTERS:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._batch([text])[0].ids

    def encode_each(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """The parts of one prompt, which must fit the context together."""
        tokens = 0
        for text in texts:
            ids = self.encode(text)
            tokens = self.added(tokens, len(ids))
            yield ids

    def added(self, tokens: int, more: int) -> int:
        """The sum. Raises `TooLong` if it is far beyond the context."""
        if self._most_tokens is not None and tokens + more > self._most_tokens * MARGIN:
            raise TooLong(tokens + more)
        return tokens + more

    def _refuse_if_too_long(self, text: str) -> None:
        most = self._most_tokens
        if most is None or len(text) <= most * ORDINARY_CHARACTERS_PER_TOKEN:
            return
        if len(text) > most * self._longest:
            raise TooLong(len(text) // self._longest)
        counted = 0
        for start in range(0, len(text), PIECE_CHARACTERS):
            counted += len(self._batch([text[start : start + PIECE_CHARACTERS]])[0])
            if counted > most * MARGIN:
                raise TooLong(counted // MARGIN)

    def _batch(self, texts: list[str]) -> list[Any]:
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)


def _longest_token(tokenizer: Tokenizer) -> int:
    """The most characters of text that one token can stand for. The vocabulary writes a token with at least one
    character for each byte or character of its text."""
    written = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return written * (NORMALISED_SHRINK if tokenizer.normalizer is not None else 1)


class WordCache:
    """Ids of words seen before, for one tokenizer.

    A byte-level tokenizer cuts text into words and encodes each separately, so the ids of a text are those of its
    words in sequence. Looking the words up takes a fifth of the library's time, and half of it if all words are
    new. Only for tokenizers that cut in one of the known ways, and for ASCII text without added tokens. Threads
    may share it: at worst two of them encode the same new word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._model: Any = tokenizer.model
        self._cut = _cut_of(tokenizer)
        added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        self._added = re.compile("|".join(map(re.escape, added)) or NOTHING)
        self._known: dict[str, list[int]] = {}
        self._size = 0

    def ids(self, text: str) -> list[int] | None:
        """None: the library must encode the text."""
        if (
            self._cut is None
            or len(text) > MOST_CACHED_CHARACTERS
            or not text.isascii()
            or self._added.search(text)
        ):
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
    """None: unknown, or the ids of a word depend on what surrounds it."""
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


class Scanner:
    """Searches a long text piece by piece, because one search holds the interpreter lock until it is done. Matches
    of the pattern must not be longer than `longest`."""

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
        """The text between the matches and the matches, in turn."""
        parts, start = list[str](), 0
        while found := self.search(text, start):
            parts += [text[start : found.start()], found[0]]
            start = found.end()
        return [*parts, text[start:]]

    def replace(self, text: str, by: dict[str, str]) -> str:
        return "".join(by[part] if index % 2 else part for index, part in enumerate(self.split(text)))


class ControlTokens:
    """The control tokens of a tokenizer, and text in which they are spelled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        special = ((token_id, token) for token_id, token in added.items() if token.special)
        # If two match, the longer one counts, as in the tokenizer.
        longest_first = sorted(special, key=lambda each: -len(each[1].content))
        self.ids = {token.content: token_id for token_id, token in longest_first}
        tokens = [token for _, token in longest_first]
        pattern = re.compile("|".join(map(_with_margins, tokens)) or NOTHING)
        self._cut = Scanner(pattern, max(map(_longest_match, tokens), default=0))

    def encode(self, text: str, encoder: TextEncoder, restore: Callable[[str], str] | None = None) -> list[int]:
        """Control tokens where they are spelled; the text between them as content, first passed through
        `restore`."""
        parts = self._cut.split(text)
        contents = encoder.encode_each(map(restore, parts[::2]) if restore else parts[::2])
        ids = next(contents)
        for name, content in zip(parts[1::2], contents, strict=True):
            ids += [self._id_of(name), *content]
        return ids

    def next(self, text: str, start: int) -> tuple[int, int] | None:
        """The first control token from `start` on, and where the text after it begins."""
        found = self._cut.search(text, start)
        return found and (self._id_of(found[0]), found.end())

    def _id_of(self, part: str) -> int:
        return self.ids[part if part in self.ids else part.strip()]


def _longest_match(token: AddedToken) -> int:
    """White space beside a token may be as long as the text."""
    return sys.maxsize // 2 if token.lstrip or token.rstrip else len(token.content)


def _with_margins(token: AddedToken) -> str:
    """Some tokens absorb the white space beside them."""
    before, after = (r"\s*" if strips else "" for strips in (token.lstrip, token.rstrip))
    return f"{before}{re.escape(token.content)}{after}"


def bytes_by_id(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of each token of a byte-level tokenizer; added tokens as they are spelled."""
    byte_of = {letter: byte for byte, letter in BYTE_LETTERS.items()}
    added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}
    ids = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(ids.values()) + 1)
    for token, token_id in ids.items():
        text = added.get(token_id)
        table[token_id] = text.encode() if text is not None else bytes(byte_of[c] for c in token)
    return table
