"""Contexts held in common: they read like arrays, and only their own tokens take room."""

from __future__ import annotations

import copy
import operator
import pickle
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.types import Span, Trace, logprobs, loss_mask, token_ids
from polar.types.codec import decode, encode
from polar.types.shared_ids import SharedIds, as_ids, as_shared


def shared(*parts: list[int]) -> SharedIds:
    ids: SharedIds | None = None
    for part in parts:
        ids = SharedIds(ids, token_ids(part))
    assert ids is not None
    return ids


READINGS: list[Callable[[Any], Any]] = [
    len,
    bool,
    list,
    repr,
    lambda ids: ids[0],
    lambda ids: ids[-1],
    lambda ids: ids[1:3],
    lambda ids: ids[:],
    lambda ids: ids + token_ids([9]),
    lambda ids: token_ids([9]) + ids,
    lambda ids: ids + ids,
    lambda ids: [*reversed(ids)],
    lambda ids: 3 in ids,
    lambda ids: 8 in ids,
    lambda ids: ids.index(2),
    lambda ids: ids.index(2, 2),
    lambda ids: ids.count(2),
    lambda ids: ids.tobytes(),
    lambda ids: ids.tolist(),
    lambda ids: (ids.typecode, ids.itemsize),
    lambda ids: ids == token_ids([1, 2, 3, 2]),
    lambda ids: token_ids([1, 2, 3, 2]) == ids,
    lambda ids: ids == token_ids([1, 2, 3]),
    lambda ids: ids == [1, 2, 3, 2],
    lambda ids: copy.deepcopy(ids),
    lambda ids: pickle.loads(pickle.dumps(ids)),
]


@pytest.mark.parametrize("reading", READINGS)
def test_it_reads_like_the_array_it_stands_for(reading: Callable[[Any], Any]) -> None:
    read, expected = (reading(ids) for ids in (shared([1, 2], [], [3, 2]), token_ids([1, 2, 3, 2])))
    assert read == expected
    assert isinstance(read, SharedIds) or type(read) is type(expected)


@pytest.mark.parametrize(
    "use",
    [
        lambda ids: ids.append(1),
        lambda ids: ids.__setitem__(0, 1),
        lambda ids: hash(ids),
        lambda ids: memoryview(ids),
        lambda ids: operator.add(ids, [1]),
        lambda ids: token_ids().__iadd__(ids),
    ],
)
def test_what_it_cannot_do_fails_aloud(use: Callable[[Any], Any]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        use(shared([1], [2]))


def test_an_array_can_be_extended_by_it() -> None:
    ids = token_ids([1])
    ids.extend(as_ids(shared([2], [3])))
    assert ids == token_ids([1, 2, 3])


@given(parts=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), data=st.data())
def test_the_first_of_it_are_the_first_of_all(parts: list[list[int]], data: Any) -> None:
    ids = shared(*parts)
    tokens = data.draw(st.integers(0, len(ids)))
    first = ids.first(tokens)
    assert len(first) == tokens
    assert first.whole() == ids.whole()[:tokens]
    assert SharedIds(first, token_ids([7])).whole() == ids.whole()[:tokens] + token_ids([7])


def test_long_rows_of_parts_are_no_deep_recursion() -> None:
    ids = shared(*([number] for number in range(50_000)))
    assert ids.tolist() == list(range(50_000))
    assert ids.first(3).tolist() == [0, 1, 2]


def test_a_trace_holds_it_and_travels_as_an_array() -> None:
    def trace(prompt: array[int]) -> Trace:
        return Trace("s1", prompt, token_ids([5]), loss_mask([1]), logprobs([-1.0]), (Span("c1", 0, 1),))

    held = trace(as_ids(shared([1], [2])))
    plain = trace(token_ids([1, 2]))
    assert held == plain == held
    assert encode(held) == encode(plain)
    assert type(decode(encode(held), Trace).prompt_ids) is array


def test_what_is_shared_already_is_not_wrapped_again() -> None:
    ids = shared([1])
    assert as_shared(as_ids(ids)) is ids
    assert as_shared(token_ids([1])) == ids
