"""Which weights sampled which tokens."""

from __future__ import annotations

import pytest

from polar.engines.base import Piece
from polar.engines.remote_proof import one_piece
from polar.engines.weight_versions import VersionSpan, if_several, spans_of, version_at
from polar.types import PolicySpan, logprobs, token_ids


def piece(count: int, version: str = "", *spans: PolicySpan) -> Piece:
    return Piece(token_ids(range(count)), logprobs([-1.0] * count), None, None, version, spans)


def test_spans_follow_each_other() -> None:
    told = [VersionSpan("a", 0, 3), VersionSpan("b", 3, 4)]
    assert spans_of(told) == (PolicySpan("a", 0, 3), PolicySpan("b", 3, 1))


def test_an_update_between_tokens_of_one_version_leaves_no_span() -> None:
    told = [VersionSpan("a", 0, 2), VersionSpan("b", 2, 2), VersionSpan("a", 2, 5)]
    assert spans_of(told) == (PolicySpan("a", 0, 5),)


def test_a_server_that_was_told_no_version_has_none() -> None:
    assert spans_of([VersionSpan("default", 0, 2), VersionSpan("b", 2, 3)])[0] == PolicySpan("", 0, 2)
    assert version_at(spans_of([VersionSpan("default", 0, 2)]), 0) == ""


@pytest.mark.parametrize(("position", "version"), [(0, "a"), (2, "a"), (3, "b"), (9, "a")])
def test_a_token_that_nothing_is_told_of_is_the_first_versions(position: int, version: str) -> None:
    assert version_at((PolicySpan("a", 0, 3), PolicySpan("b", 3, 1)), position) == version


def test_one_version_needs_no_spans() -> None:
    assert if_several((PolicySpan("a", 0, 3),)) == ()
    assert version_at((), 0) == ""


def test_pieces_of_several_versions_make_one_that_tells_them() -> None:
    whole = one_piece([piece(2, "a"), piece(1, "a"), piece(1, "b")])
    assert whole.policy_version == "a"
    assert whole.policy_spans == (PolicySpan("a", 0, 3), PolicySpan("b", 3, 1))


def test_a_version_that_is_told_at_the_end_is_the_whole_replys() -> None:
    assert (one_piece([piece(2), piece(1, "a")]).policy_version, one_piece([]).policy_version) == ("a", "")
    spans = (PolicySpan("a", 0, 2), PolicySpan("b", 2, 1))
    whole = one_piece([piece(2), piece(1, "b", *spans)])
    assert (whole.policy_version, whole.policy_spans) == ("a", spans)
