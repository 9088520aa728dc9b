"""Which weights sampled which tokens."""

from __future__ import annotations

import pytest

from polar.engines.base import Piece
from polar.engines.pieces import one_piece
from polar.engines.remote.server import VersionSpan, policy_spans, version_at
from polar.types import PolicySpan, logprobs, token_ids


def piece(count: int, version: str = "", *spans: PolicySpan) -> Piece:
    return Piece(token_ids(range(count)), logprobs([-1.0] * count), None, None, version, spans)


def test_spans_follow_each_other() -> None:
    reported = [VersionSpan("a", 0, 3), VersionSpan("b", 3, 4)]
    assert policy_spans(reported) == (PolicySpan("a", 0, 3), PolicySpan("b", 3, 1))


def test_an_update_between_tokens_of_one_version_leaves_no_span() -> None:
    reported = [VersionSpan("a", 0, 2), VersionSpan("b", 2, 2), VersionSpan("a", 2, 5)]
    assert policy_spans(reported) == (PolicySpan("a", 0, 5),)


def test_a_single_version_is_a_span() -> None:
    assert policy_spans([VersionSpan("a", 0, 3)]) == (PolicySpan("a", 0, 3),)


def test_tokens_sampled_before_a_version_was_set_have_none() -> None:
    reported = [VersionSpan("default", 0, 2), VersionSpan("b", 2, 3)]
    assert policy_spans(reported) == (PolicySpan("", 0, 2), PolicySpan("b", 2, 1))


def test_a_server_without_a_set_version_has_none() -> None:
    assert policy_spans([VersionSpan("default", 0, 2)]) == policy_spans([]) == policy_spans(None) == ()


def test_tokens_without_a_reported_version_are_in_no_span() -> None:
    reported = [VersionSpan("a", 1, 3), VersionSpan("a", 4, 5)]
    assert policy_spans(reported) == (PolicySpan("a", 1, 2), PolicySpan("a", 4, 1))


@pytest.mark.parametrize(("position", "version"), [(0, "a"), (2, "a"), (3, "b"), (9, "")])
def test_a_token_has_the_version_of_its_span(position: int, version: str) -> None:
    assert version_at((PolicySpan("a", 0, 3), PolicySpan("b", 3, 1)), position) == version


def test_pieces_of_one_version_make_one_of_it() -> None:
    assert one_piece([piece(2, "a"), piece(1, "a"), piece(0)]).policy_version == "a"
    assert one_piece([]).policy_version == ""


def test_pieces_of_several_versions_make_one_of_none() -> None:
    for pieces in ([piece(2, "a"), piece(1, "b")], [piece(2), piece(1, "a")]):
        whole = one_piece(pieces)
        assert (whole.policy_version, whole.policy_spans) == ("", ())


def test_versions_by_token_stay_with_pieces_made_one() -> None:
    spans = (PolicySpan("a", 0, 3),)
    assert one_piece([piece(2), piece(1, "a", *spans)]).policy_spans == spans
