"""Which policy version sampled which token of a reply: what the engine tells, and when it is believed."""

from __future__ import annotations

from polar.engines.base import Piece
from polar.gateway.calls.policy_gate import Versions
from polar.types import PolicySpan, logprobs, token_ids


def heard(*pieces: Piece, began: str = "v1", updated: bool = False) -> Versions:
    versions = Versions()
    versions.start = began
    for piece in pieces:
        versions.take(piece, len(piece.ids))
    versions.updated_within = updated
    return versions


def piece(size: int, version: str = "", *spans: PolicySpan) -> Piece:
    return Piece(token_ids(range(size)), logprobs([-1.0] * size), policy_version=version, policy_spans=spans)


def test_an_engine_that_tells_nothing_sampled_under_what_the_call_began_with() -> None:
    versions = heard(piece(3), piece(2))
    assert (versions.first, versions.spans, versions.unknown) == ("v1", (), False)


def test_an_update_that_the_engine_does_not_place_leaves_the_versions_unknown() -> None:
    assert heard(piece(3), updated=True).unknown
    assert heard(piece(3, "v2"), updated=True).unknown, "a name for the whole says nothing of its first tokens"
    assert heard(piece(3), piece(2, "v2")).unknown, "it had no name, and then it had one"


def test_the_engine_knows_better_than_the_gateway_what_it_samples_with() -> None:
    versions = heard(piece(3, "v7"), piece(2, "v7"))
    assert (versions.first, versions.spans, versions.unknown) == ("v7", (), False)


def test_versions_told_by_token_are_kept_by_token() -> None:
    told = (PolicySpan("v1", 0, 3), PolicySpan("v2", 3, 2))
    versions = heard(piece(3), piece(2, "", *told), updated=True)
    assert (versions.first, versions.spans, versions.unknown) == ("v1", told, False)


def test_one_version_told_by_token_is_the_call_s() -> None:
    versions = heard(piece(5, "", PolicySpan("v2", 0, 5)), updated=True)
    assert (versions.first, versions.spans, versions.unknown) == ("v2", (), False)


def test_tokens_that_were_cut_off_belong_to_no_version() -> None:
    versions = Versions()
    told = (PolicySpan("v1", 0, 3), PolicySpan("v2", 3, 2))
    versions.take(piece(5, "", *told), 2)
    assert (versions.first, versions.spans, versions.unknown) == ("v1", (), False)


def test_spans_that_leave_tokens_out_are_not_believed() -> None:
    assert heard(piece(5, "", PolicySpan("v1", 0, 3))).unknown
