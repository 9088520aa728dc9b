"""The trajectory with its statistics: token counts, merge rate, breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from polar.builders.append_only import AppendStep, appended_steps
from polar.builders.links import Link
from polar.types import Break, Dropped, Trace, Trajectory, TrajectoryStatistics


class TokensUnaccounted(ValueError):
    """A sampled token came out twice or not at all: a defect of the builder."""


def trajectory_of(
    session_id: str,
    builder: str,
    links: Sequence[Link],
    traces: Sequence[Trace],
    breaks: tuple[Break, ...],
    version: str = "",
) -> Trajectory:
    dropped = tuple(drop for link in links for drop in (*link.verdict.dropped, *link.lost))
    return Trajectory(
        session_id=session_id,
        builder=builder,
        traces=tuple(traces),
        dropped=dropped,
        breaks=breaks,
        statistics=_statistics_of(links, traces, dropped, breaks).model_dump(),
        builder_version=version,
    )


def _statistics_of(
    links: Sequence[Link], traces: Sequence[Trace], dropped: Sequence[Dropped], breaks: Sequence[Break]
) -> TrajectoryStatistics:
    sampled = sum(len(link.call.completion_ids) for link in links)
    trainable = sum(trace.trainable_tokens for trace in traces)
    lost = sum(drop.length for drop in dropped)
    if sampled != trainable + lost:
        raise TokensUnaccounted(f"{sampled} tokens sampled, but {trainable} trainable and {lost} dropped")
    steps = _mergeable_steps(links)
    pairs = sum(min(len(step.earlier), len(step.later)) for step in steps)
    merged = _merged(steps, _neighbours_in(traces))
    return TrajectoryStatistics(
        calls=len(links),
        traces=len(traces),
        sampled_tokens=sampled,
        trainable_tokens=trainable,
        dropped_tokens=lost,
        cut_tokens=sum(link.call.cut_tokens for link in links),
        reported_tokens=sum((link.call.usage.completion_tokens or 0) for link in links if link.call.usage),
        append_only_pairs=pairs,
        merged_pairs=merged,
        merge_rate=merged / pairs if pairs else None,
        breaks=dict(Counter(broken.reason for broken in breaks)),
        dropped=_tokens_by_reason(dropped),
        inexact_traces=sum(not trace.context_exact for trace in traces),
        tolerant_matches=dict(Counter(label for link in links for label in link.call.tolerant)),
    )


def _mergeable_steps(links: Sequence[Link]) -> list[AppendStep]:
    """Without later calls that have nothing trainable by themselves, such as aborted ones: no builder could use
    them. A call that lost its tokens to an unproven prompt does count."""
    useless = {link.call_id for link in links if link.proven and not link.verdict.trainable}
    steps = appended_steps([link.call for link in links])
    kept = (
        AppendStep(step.earlier, tuple(call_id for call_id in step.later if call_id not in useless))
        for step in steps
    )
    return [step for step in kept if step.later]


def _merged(steps: Iterable[AppendStep], neighbours: set[tuple[str, str]]) -> int:
    """Later calls that directly follow one of the earlier ones in a trace."""
    return sum(
        any((earlier, later) in neighbours for earlier in step.earlier) for step in steps for later in step.later
    )


def _neighbours_in(traces: Iterable[Trace]) -> set[tuple[str, str]]:
    """Pairs of calls that follow each other in a trace, by the traces' own spans."""
    return {(earlier.call_id, later.call_id) for trace in traces for earlier, later in pairwise(trace.spans)}


def _tokens_by_reason(dropped: Iterable[Dropped]) -> dict[str, int]:
    tokens: Counter[str] = Counter()
    for drop in dropped:
        tokens[drop.reason] += drop.length
    return dict(tokens)
