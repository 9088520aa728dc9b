from __future__ import annotations

import pytest
import torch

from polar.engines.torch.prefixes import PrefixCache
from polar.types import token_ids

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]


def values(tokens: int) -> torch.Tensor:
    return torch.zeros(tokens * 4)  # 16 bytes a token


def test_the_longest_common_beginning_is_found() -> None:
    store = PrefixCache(10_000)
    store.add(token_ids([1, 2, 3, 4]), values(4))
    store.add(token_ids([1, 2, 9]), values(3))
    found, tensor = store.longest(token_ids([1, 2, 3, 7]))
    assert found == 3
    assert tensor is not None and tensor.numel() == 16
    assert store.longest(token_ids([5])) == (0, None)


def test_a_sequence_replaces_the_one_it_continues() -> None:
    store = PrefixCache(10_000)
    store.add(token_ids([1, 2]), values(2))
    store.add(token_ids([1, 2, 3]), values(3))
    store.add(token_ids([1]), values(1))
    assert len(store) == 1
    assert store.size_bytes == 48


def test_the_least_recently_used_goes_first() -> None:
    store = PrefixCache(5 * 16)
    store.add(token_ids([1, 1]), values(2))
    store.add(token_ids([2, 2]), values(2))
    store.longest(token_ids([1, 1]))
    store.add(token_ids([3, 3]), values(2))
    assert [store.longest(token_ids([n, n]))[0] for n in (1, 2, 3)] == [2, 0, 2]
    assert store.fits(5 * 16)
    assert not store.fits(5 * 16 + 1)
