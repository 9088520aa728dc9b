"""Token sequences: digests that can be extended, prompts joined from their parts, and where two sequences
differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from polar.types import Call, TokenIds, token_ids


class TokenDigest:
    """A running blake2b over int32 ids: extending it costs only the new tokens."""

    def __init__(self, ids: TokenIds | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        if ids is not None:
            self._hash.update(ids.tobytes())

    def extended(self, ids: TokenIds) -> TokenDigest:
        longer = TokenDigest()
        longer._hash = self._hash.copy()
        longer._hash.update(ids.tobytes())
        return longer

    def value(self) -> bytes:
        return self._hash.digest()


def digest_of(ids: TokenIds) -> bytes:
    return TokenDigest(ids).value()


def joined_prompt(calls: Iterable[Call]) -> TokenIds:
    """The whole prompt of the first of `calls`; the others are the calls it continues, newest first."""
    parts: list[TokenIds] = []
    for call in calls:
        parts += [call.completion_ids, call.new_prompt_ids]
    prompt = token_ids()
    for part in reversed(parts[1:]):
        prompt.extend(part)
    return prompt


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """How many items two sequences of the same type begin with in common. Slices are compared, not items, because
    that needs no loop in Python."""
    equal, unequal = 0, min(len(one), len(other)) + 1
    if one[: unequal - 1] == other[: unequal - 1]:
        return unequal - 1
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            unequal = middle
    return equal
