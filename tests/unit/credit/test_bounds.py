"""Truncation keeps contexts exact; staleness goes by the version of each token."""

from __future__ import annotations

from array import array

import msgspec

from polar.credit.advantages import CreditedTrace
from polar.credit.bounds import oldest_age, truncated, within_bounds, without_stale
from polar.types import PolicySpan, Span, Trace, logprobs, loss_mask, token_ids

TRACE = Trace(
    session_id="s",
    prompt_ids=token_ids([1, 2]),
    response_ids=token_ids([3, 4, 5, 6, 7]),
    loss_mask=loss_mask([1, 1, 0, 1, 1]),
    logprobs=logprobs([-1, -2, 0, -3, -4]),
    spans=(
        Span("a", 0, 2, "v1"),
        Span("b", 3, 2, "v1", (PolicySpan("v1", 0, 1), PolicySpan("v2", 1, 1))),
    ),
)


def test_only_the_end_is_cut() -> None:
    cut = truncated(TRACE, 6)
    assert cut is not None
    assert (cut.prompt_ids.tolist(), cut.response_ids.tolist()) == ([1, 2], [3, 4, 5, 6])
    assert cut.loss_mask.tolist() == [1, 1, 0, 1]
    assert [(span.call_id, span.length) for span in cut.spans] == [("a", 2), ("b", 1)]
    assert [part.version for part in cut.spans[1].versions] == ["v1"]


def test_what_fits_is_left_alone_and_what_leaves_nothing_to_train_on_is_dropped() -> None:
    assert truncated(TRACE, 7) is TRACE
    assert truncated(TRACE, 2) is None
    untrainable = Trace("s", token_ids([1]), token_ids([2, 3]), loss_mask([0, 1]), logprobs([0, -1]), ())
    assert truncated(untrainable, 2) is None


def test_a_token_is_as_old_as_its_own_version() -> None:
    fresh = without_stale(TRACE, {"v1": 3, "v2": 0}, max_age=2)
    assert fresh.loss_mask.tolist() == [0, 0, 0, 0, 1]
    assert fresh.logprobs.tolist() == [0, 0, 0, 0, -4]
    assert fresh.response_ids == TRACE.response_ids
    assert without_stale(TRACE, {"v1": 2, "v2": 0}, max_age=2) is TRACE


def test_a_version_that_is_not_known_is_too_old() -> None:
    assert without_stale(TRACE, {"v2": 0}, max_age=99).trainable_tokens == 1
    assert oldest_age(TRACE, {"v2": 0}) is None
    assert oldest_age(TRACE, {"v1": 3, "v2": 0}) == 3


def test_a_token_that_is_masked_has_no_advantage() -> None:
    versions = (PolicySpan("1", 0, 1), PolicySpan("5", 1, 1))
    trace = msgspec.structs.replace(TRACE, spans=(Span("a", 0, 2, "1"), Span("b", 3, 2, "", versions)))
    item = CreditedTrace(trace, array("d", [0.5, 0.5, 0.0, 0.5, 0.5]))
    kept = within_bounds(item, max_age=2, version="5")
    assert kept is not None
    assert kept.advantages.tolist() == [0.0, 0.0, 0.0, 0.0, 0.5]
    both = within_bounds(item, max_age=9, max_tokens=3, version="5")
    assert both is not None and both.advantages.tolist() == [0.5]
