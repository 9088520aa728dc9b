from __future__ import annotations

from polar.tokens.digest import TokenDigest, digest_of
from polar.types import token_ids


def test_a_digest_grown_in_steps_equals_one_of_the_whole() -> None:
    start = TokenDigest(token_ids([1, 2]))
    assert start.extended(token_ids([3])).value() == digest_of(token_ids([1, 2, 3]))
    assert start.value() == digest_of(token_ids([1, 2])), "extending leaves the shorter one as it was"


def test_every_token_counts() -> None:
    assert digest_of(token_ids([1, 2])) != digest_of(token_ids([2, 1]))
    assert digest_of(token_ids()) != digest_of(token_ids([0]))
