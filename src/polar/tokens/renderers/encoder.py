"""Text to ids with a model's tokenizer, so that a long text stops nobody but its sender.

`Tokenizer.encode` holds the interpreter until it is done, also in a thread; its batch call lets go of it. And a
text that cannot fit the model's context is refused before the work is done: a byte of text costs a microsecond and
180 bytes of memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

from tokenizers import Tokenizer

from polar.tokens.renderers.words import Words

SHORT_CHARACTERS = 256
"""Encoded where it stands: a batch call is the way to another thread and back."""
PIECE_CHARACTERS = 2**16
"""Counted at once."""
ORDINARY_CHARACTERS_PER_TOKEN = 8
"""A text with no more of them than this, for each token of the context, is encoded without being counted first."""
MARGIN = 2
"""A piece is encoded apart from its neighbours, which changes tokens near its ends. More than half of a count made
from pieces is never due to that."""
NORMALISED_SHRINK = 4
"""A normaliser that composes characters makes text shorter by at most three; see docs/design/neighbours.md."""


class TooLong(ValueError):
    """A text that is more tokens than the context has."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the text has at least {tokens} tokens, more than the model's context")
        self.tokens = tokens
        """At least so many."""


class TextEncoder:
    """Threads may share it: after its set-up nothing changes a tokenizer, and its own cache is locked."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # A batch of one gains nothing from the library's own threads; waking them costs more than a short text.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer: Any = tokenizer  # its batch call is typed in part only
        self._most_tokens: int | None = None
        self._longest = _longest_token(tokenizer)
        self._words = Words(tokenizer)

    def bounded(self, context_tokens: int) -> TextEncoder:
        """The same for a model with this context: raises `TooLong` for a text that is certainly longer. One that
        is a little too long is encoded, so that its sender is told its size."""
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
        """The parts of one prompt, which together have to fit."""
        tokens = 0
        for text in texts:
            ids = self.encode(text)
            tokens = self.added(tokens, len(ids))
            yield ids

    def added(self, tokens: int, more: int) -> int:
        """The sum. Raises `TooLong` where it is far more than the context."""
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
    """The most characters of text that one token can stand for. A token is written with at least one character for
    each byte, or for each character, of its text."""
    written = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
    return written * (NORMALISED_SHRINK if tokenizer.normalizer is not None else 1)
