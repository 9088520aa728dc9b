"""Tokens scored again: which are chosen, and the limits on their gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from polar.audit.rescoring import (
    RescoredToken,
    RescoringLimits,
    findings_of,
    gaps_of,
    positions_to_score,
    score_trace,
)
from polar.types import (
    Call,
    CallTimes,
    Logprobs,
    Message,
    Span,
    TokenIds,
    Trace,
    Trajectory,
    logprobs,
    loss_mask,
    token_ids,
)

PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
LIMITS = RescoringLimits(max_mean=0.001, max_abs=0.05)


def a_call(call_id: str, sampling: dict[str, Any] = PLAIN) -> Call:
    return Call(
        call_id=call_id,
        session_id="s1",
        parent_id=None,
        continues=False,
        new_prompt_ids=token_ids([1]),
        completion_ids=token_ids([2]),
        logprobs=logprobs([-1]),
        prompt_digest=b"",
        prompt_tokens=1,
        finish_reason="stop",
        new_messages=(),
        response=Message(role="assistant"),
        tools=None,
        new_items=(),
        dialect="openai_chat",
        kind="agent",
        sampling=sampling,
        engine="fake",
        logprob_mode="processed",
        times=CallTimes(0, 0, 0),
    )


A_TRACE = Trace(
    session_id="s1",
    prompt_ids=token_ids([10, 11, 12]),
    response_ids=token_ids([20, 21, 22, 23, 24, 25]),
    loss_mask=loss_mask([1, 0, 1, 0, 1, 1]),
    logprobs=logprobs([-1, 0, -2, 0, -4, -5]),
    spans=(Span("c1", 0, 3), Span("c2", 4, 2)),
)


class TenTimes:
    """Scores a token with the sum of what stands before it, so a wrong context or position shows."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int]]] = []

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        self.asked.append((list(ids), list(positions)))
        return logprobs([-float(sum(ids[:position])) for position in positions])


def token(captured: float, scored: float, position: int = 0) -> RescoredToken:
    return RescoredToken("s1", 0, position, 7, captured, scored)


def test_all_trainable_positions_are_asked_for_with_zero() -> None:
    assert positions_to_score(A_TRACE, [a_call("c1"), a_call("c2")], 0, "seed") == [0, 2, 4, 5]


def test_a_sample_is_the_same_each_time_and_in_order() -> None:
    calls = [a_call("c1"), a_call("c2")]
    chosen = positions_to_score(A_TRACE, calls, 2, "seed")
    assert chosen == positions_to_score(A_TRACE, calls, 2, "seed") == sorted(chosen)
    assert len(chosen) == 2 and set(chosen) < {0, 2, 4, 5}
    samples = {tuple(positions_to_score(A_TRACE, calls, 2, f"seed {n}")) for n in range(50)}
    assert len(samples) == 6, "every pair comes up"


@pytest.mark.parametrize("sampling", [PLAIN | {"temperature": 0.5}, PLAIN | {"json_schema": True}, {}])
def test_calls_that_were_not_sampled_plainly_are_left_out(sampling: dict[str, Any]) -> None:
    assert positions_to_score(A_TRACE, [a_call("c1", sampling), a_call("c2")], 0, "seed") == [4, 5]


def test_spans_that_leave_the_trace_are_no_crash() -> None:
    """A damaged file: what is wrong with it is the certificate's to say."""
    spans = (Span("c1", -2, 3), Span("c2", 4, 99))
    trace = Trace("s1", A_TRACE.prompt_ids, A_TRACE.response_ids, A_TRACE.loss_mask, A_TRACE.logprobs, spans=spans)
    assert positions_to_score(trace, [a_call("c1"), a_call("c2")], 0, "seed") == [0, 4, 5]


async def test_tokens_are_scored_in_the_context_of_their_trace() -> None:
    scorer = TenTimes()
    scored = await score_trace(Trajectory("s1", "mine", (A_TRACE,)), 0, [0, 4], scorer)
    assert scorer.asked == [([10, 11, 12, 20, 21, 22, 23, 24], [3, 7])]
    assert [(each.position, each.token_id, each.captured, each.scored) for each in scored] == [
        (0, 20, -1.0, -33.0),
        (4, 24, -4.0, -119.0),
    ]


async def test_nothing_to_score_asks_nothing() -> None:
    scorer = TenTimes()
    assert await score_trace(Trajectory("s1", "mine", (A_TRACE,)), 0, [], scorer) == []
    assert scorer.asked == []


def test_gaps_are_summed_up() -> None:
    gaps = gaps_of([token(-1, -1 - n / 1000, n) for n in range(200)])
    assert (gaps.tokens, gaps.unscored) == (200, 0)
    assert gaps.mean == pytest.approx(0.0995)
    assert gaps.p99 == pytest.approx(0.197)
    assert gaps.max == pytest.approx(0.199)
    assert [worst.position for worst in gaps.worst] == [199, 198, 197, 196, 195]


def test_no_tokens_have_no_gap() -> None:
    gaps = gaps_of([])
    assert (gaps.mean, gaps.p99, gaps.max, gaps.worst) == (None, None, None, ())
    assert findings_of([], LIMITS) == []


def test_rounding_is_no_finding() -> None:
    assert findings_of([token(-1, -1.0004), token(-2, -1.9996)], LIMITS) == []


def test_one_token_beyond_the_limit_is_named() -> None:
    found = findings_of([token(-1, -1.0)] * 500 + [token(-1, -1.2, position=17)], LIMITS)
    assert [(finding.what, finding.where) for finding in found] == [
        ("logprob_gap", "session s1, trace 0, position 17")
    ]


def test_many_small_gaps_are_beyond_the_mean() -> None:
    found = findings_of([token(-1, -1.002)] * 10, LIMITS)
    assert [finding.what for finding in found] == ["mean_gap"]


def test_more_than_can_be_listed_are_counted() -> None:
    found = findings_of([token(-1, -2)] * 50, RescoringLimits(max_mean=9, max_abs=0.05))
    assert len(found) == 21
    assert found[-1].found == "30 more tokens beyond it"


@pytest.mark.parametrize("scored", [math.nan, -math.inf])
def test_a_token_without_a_score_is_a_finding(scored: float) -> None:
    found = findings_of([token(-1, -1), token(-1, scored)], LIMITS)
    assert "no_score" in [finding.what for finding in found]
    assert gaps_of([token(-1, scored)]).mean is None
