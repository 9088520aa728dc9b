"""Keys and values of ended sequences, found again by their tokens. The least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from torch import Tensor

from polar.tokens.sequences import first_difference
from polar.types import TokenIds


class StoredPrefix(NamedTuple):
    ids: TokenIds
    values: Tensor

    @property
    def size_bytes(self) -> int:
        return self.values.numel() * self.values.element_size()


class PrefixCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._prefixes: OrderedDict[int, StoredPrefix] = OrderedDict()
        """By a running number, the least recently used first."""
        self._next_key = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._prefixes)

    def fits(self, size_bytes: int) -> bool:
        """Whether a sequence of this size can be kept, if others go."""
        return size_bytes <= self._max_bytes

    def add(self, ids: TokenIds, values: Tensor) -> None:
        """Keeps a sequence. It replaces those that it continues."""
        for key, prefix in list(self._prefixes.items()):
            shared = first_difference(prefix.ids, ids)
            if shared == len(ids):
                self._prefixes.move_to_end(key)
                return
            if shared == len(prefix.ids):
                self._remove(key)
        self._prefixes[self._next_key] = StoredPrefix(ids, values)
        self.size_bytes += self._prefixes[self._next_key].size_bytes
        self._next_key += 1
        while self.size_bytes > self._max_bytes:
            self._remove(next(iter(self._prefixes)))

    def longest(self, ids: TokenIds) -> tuple[int, Tensor | None]:
        """How many tokens of `ids` are known, and a tensor that holds them."""
        best, found = 0, None
        for key, prefix in self._prefixes.items():
            if (shared := first_difference(prefix.ids, ids)) > best:
                best, found = shared, key
        if found is None:
            return 0, None
        self._prefixes.move_to_end(found)
        return best, self._prefixes[found].values

    def clear(self) -> None:
        self._prefixes.clear()
        self.size_bytes = 0

    def _remove(self, key: int) -> None:
        self.size_bytes -= self._prefixes.pop(key).size_bytes
