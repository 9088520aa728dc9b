"""Trainable tokens scored again by an engine, in the context of their trace.

The captured and the new logprob come from the same weights over the same tokens, so they differ only by the
engine's rounding. A wrong context, or a logprob of another token, makes the gap larger.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from polar.audit.certificate import finding
from polar.builders.drops import is_plain
from polar.engines.base import Scorer
from polar.types import Call, Finding, Trace, Trajectory

WORST = 5
"""Tokens shown with their context."""
LISTED = 20
"""Tokens beyond the limit with a finding each; one more finding counts the rest."""


@dataclass(frozen=True)
class RescoredToken:
    session_id: str
    trace_index: int
    position: int
    """In the response."""
    token_id: int
    captured: float
    scored: float
    """NaN if the engine returned none."""

    @property
    def gap(self) -> float:
        return abs(self.captured - self.scored)


@dataclass(frozen=True)
class RescoringLimits:
    max_mean: float
    max_abs: float


@dataclass(frozen=True)
class LogprobGaps:
    """|captured - scored| over many tokens."""

    tokens: int
    unscored: int
    mean: float | None
    p99: float | None
    max: float | None
    worst: tuple[RescoredToken, ...]


def positions_to_score(trace: Trace, calls: Sequence[Call], limit: int, seed: str) -> list[int]:
    """Trainable positions of the response, at most `limit` of them (0: all), the same ones each time. Calls that
    were not sampled plainly are left out: their processed logprobs belong to another distribution than the
    model's."""
    plain = {call.call_id for call in calls if is_plain(call.sampling)}
    sampled = {
        position
        for span in trace.spans
        if span.call_id in plain
        for position in range(span.start, span.start + span.length)
    }
    trainable = [position for position, bit in enumerate(trace.loss_mask) if bit and position in sampled]
    if not limit or limit >= len(trainable):
        return trainable
    return sorted(random.Random(seed).sample(trainable, limit))


async def score_trace(
    trajectory: Trajectory, trace_index: int, positions: Sequence[int], scorer: Scorer
) -> list[RescoredToken]:
    trace = trajectory.traces[trace_index]
    if not positions:
        return []
    before = len(trace.prompt_ids)
    ids = trace.prompt_ids + trace.response_ids[: positions[-1] + 1]
    scored = await scorer.score(ids, [before + position for position in positions])
    return [
        RescoredToken(
            session_id=trajectory.session_id,
            trace_index=trace_index,
            position=position,
            token_id=trace.response_ids[position],
            captured=trace.logprobs[position],
            scored=value,
        )
        for position, value in zip(positions, scored, strict=True)
    ]


def gaps_of(tokens: Sequence[RescoredToken]) -> LogprobGaps:
    known = sorted((token for token in tokens if math.isfinite(token.scored)), key=lambda token: -token.gap)
    values = [token.gap for token in known]
    return LogprobGaps(
        tokens=len(tokens),
        unscored=len(tokens) - len(known),
        mean=math.fsum(values) / len(values) if values else None,
        p99=values[len(values) // 100] if values else None,
        max=values[0] if values else None,
        worst=tuple(known[:WORST]),
    )


def findings_of(tokens: Sequence[RescoredToken], limits: RescoringLimits) -> list[Finding]:
    """Gaps beyond the limits, and tokens that the engine did not score."""
    gaps = gaps_of(tokens)
    wide = sorted((token for token in tokens if token.gap > limits.max_abs), key=lambda token: -token.gap)
    found = [_gap_finding(token, limits) for token in wide[:LISTED]]
    if len(wide) > LISTED:
        rest = f"{len(wide) - LISTED} more tokens beyond it"
        found.append(finding("the run", "logprob_gap", f"<= {limits.max_abs:g}", rest))
    if gaps.mean is not None and gaps.mean > limits.max_mean:
        mean = f"{gaps.mean:.3g} over {gaps.tokens - gaps.unscored} tokens"
        found.append(finding("the run", "mean_gap", f"<= {limits.max_mean:g}", mean))
    if gaps.unscored:
        none = f"none for {gaps.unscored} of {gaps.tokens}"
        found.append(finding("the run", "no_score", "a finite score for each token", none))
    return found


def _gap_finding(token: RescoredToken, limits: RescoringLimits) -> Finding:
    where = f"session {token.session_id}, trace {token.trace_index}, position {token.position}"
    expected = f"{token.captured:.5f} as captured, within {limits.max_abs:g}"
    return finding(where, "logprob_gap", expected, f"{token.scored:.5f} from the engine")
