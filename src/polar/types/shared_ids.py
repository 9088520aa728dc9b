"""Token ids that several traces begin with, stored once.

If a session branches at each of its calls, every branch has a long context: as arrays they would take memory in
the square of the session's length. Here a context is a reference to the one before it and what was added, so all
of them take the memory of the tokens alone. Reading one joins its parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast, overload

from polar.types.base import TokenIds, token_ids


class SharedIds:
    """Reads like an immutable array of ids. Each reading joins all parts and costs the full length: if you need it
    twice, call `whole()` once. It has no buffer."""

    __slots__ = ("_before", "_ids", "_own", "_size")
    typecode = "i"
    itemsize = 4

    def __init__(self, before: SharedIds | None, ids: TokenIds, own: int | None = None) -> None:
        """`before`, then the first `own` of `ids`, or all of them. The array is not copied."""
        self._before = before
        self._ids = ids
        self._own = len(ids) if own is None else own
        self._size = self._own + (len(before) if before is not None else 0)

    def first(self, tokens: int) -> SharedIds:
        """The first `tokens` ids, sharing the parts. There must be that many."""
        part = self
        while part._size - part._own >= tokens and part._before is not None:
            part = part._before
        if part._size == tokens:
            return part
        return SharedIds(part._before, part._ids, tokens - part._size + part._own)

    def whole(self) -> TokenIds:
        parts: list[TokenIds] = []
        part: SharedIds | None = self
        while part is not None:
            parts.append(part._ids if part._own == len(part._ids) else part._ids[: part._own])
            part = part._before
        ids = token_ids()
        for own in reversed(parts):
            ids.extend(own)
        return ids

    def tobytes(self) -> bytes:
        return self.whole().tobytes()

    def tolist(self) -> list[int]:
        return self.whole().tolist()

    def index(self, *arguments: int) -> int:
        return self.whole().index(*arguments)

    def count(self, value: int) -> int:
        return self.whole().count(value)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return iter(self.whole())

    def __reversed__(self) -> Iterator[int]:
        return reversed(self.whole())

    def __contains__(self, value: object) -> bool:
        return value in self.whole()

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> TokenIds: ...
    def __getitem__(self, key: int | slice) -> int | TokenIds:
        return self.whole()[key]

    def __add__(self, other: Any) -> TokenIds:
        return self.whole() + _array(other)

    def __radd__(self, other: Any) -> TokenIds:
        return _array(other) + self.whole()

    def __eq__(self, other: object) -> bool:
        return self is other or self.whole() == _array(other)

    def __repr__(self) -> str:
        return repr(self.whole())

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is an array."""
        return token_ids, (self.tolist(),)


def _array(value: Any) -> Any:
    return value.whole() if isinstance(value, SharedIds) else value


def as_shared(ids: TokenIds) -> SharedIds:
    """A trace's prompt in a form that others can share."""
    value = cast("Any", ids)
    return value if isinstance(value, SharedIds) else SharedIds(None, ids)


def as_ids(shared: SharedIds) -> TokenIds:
    """For a field of ids: reading it gives the same."""
    return cast("TokenIds", shared)
