from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polar.tokens.sequences import TokenDigest, digest_of, first_difference
from polar.types import token_ids


def test_a_digest_grown_in_steps_equals_one_of_the_whole() -> None:
    start = TokenDigest(token_ids([1, 2]))
    assert start.extended(token_ids([3])).value() == digest_of(token_ids([1, 2, 3]))
    assert start.value() == digest_of(token_ids([1, 2])), "extending leaves the shorter one as it was"


def test_every_token_counts() -> None:
    assert digest_of(token_ids([1, 2])) != digest_of(token_ids([2, 1]))
    assert digest_of(token_ids()) != digest_of(token_ids([0]))


ids = st.lists(st.integers(0, 2), max_size=40)


@given(ids, ids, ids)
def test_the_first_difference_is_that_of_a_plain_loop(same: list[int], left: list[int], right: list[int]) -> None:
    one, other = same + left, same + right
    shorter = min(len(one), len(other))
    expected = next((position for position in range(shorter) if one[position] != other[position]), shorter)
    assert first_difference(one, other) == first_difference(tuple(one), tuple(other)) == expected
    assert first_difference(token_ids(one), token_ids(other)) == expected
