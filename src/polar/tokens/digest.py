"""Digests of token sequences that can be extended: hashing turn k costs only turn k's tokens."""

from __future__ import annotations

import hashlib

from polar.types import TokenIds


class TokenDigest:
    """A running blake2b over int32 ids."""

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
