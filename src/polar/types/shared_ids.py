"""Token ids that several traces begin with, held once.

Of a session that branches at each of its calls, every branch has a long context of its own: as arrays these are
the square of the session. Here a context is the one before it and what came after, so all of them take the room
of the tokens alone, and one is put together when somebody reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast, overload

from polar.types.base import TokenIds, token_ids


class SharedIds:
    """Reads like an array of ids and cannot be changed. Each reading puts all of it together and costs its length:
    whoever needs it twice takes `whole()` once. It has no buffer."""

    __slots__ = ("_before", "_ids", "_own", "_size")
    typecode = "i"
    itemsize = 4

    def __init__(self, before: SharedIds | None, ids: TokenIds, own: int | None = None) -> None:
        """What comes before, then the first `own` of `ids`, or all. The array is not copied."""
        self._before = before
        self._ids = ids
        self._own = len(ids) if own is None else own
        self._size = self._own + (len(before) if before is not None else 0)

    def first(self, tokens: int) -> SharedIds:
        """The first tokens of it, which share with it what they have in common. It has as many."""
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
        """Copied or sent elsewhere it is an array."""
        return token_ids, (self.tolist(),)


def _array(value: Any) -> Any:
    return value.whole() if isinstance(value, SharedIds) else value


def as_shared(ids: TokenIds) -> SharedIds:
    """What a trace has as its prompt, as something that others can go on from."""
    value = cast("Any", ids)
    return value if isinstance(value, SharedIds) else SharedIds(None, ids)


def as_ids(shared: SharedIds) -> TokenIds:
    """For a field that holds ids: whoever reads it sees no difference."""
    return cast("TokenIds", shared)
