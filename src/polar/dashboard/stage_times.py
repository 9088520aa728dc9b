"""When the stages of a session began, from the durations that its node measured."""

from __future__ import annotations

from collections.abc import Sequence

from polar.types import Call, SessionResult, Stage

ORDER = (Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN)

Stages = list[tuple[Stage, float]]


def stages_of(result: SessionResult, submitted: float, calls: Sequence[Call]) -> Stages:
    """From the seconds its node measured. These are durations: the stages are placed from the submission on, and
    moved if that would put a call outside of RUNNING."""
    took = [(stage, result.stage_s[stage.value]) for stage in ORDER if stage.value in result.stage_s]
    start = submitted
    if calls:
        before_s = sum(seconds for stage, seconds in took if ORDER.index(stage) < ORDER.index(Stage.RUNNING))
        latest = min(call.times.arrived for call in calls)
        earliest = max(call.times.sampled for call in calls) - result.stage_s.get(Stage.RUNNING.value, 0.0)
        start = min(max(submitted + before_s, earliest), latest) - before_s
    stages: Stages = []
    for stage, seconds in took:
        stages.append((stage, start))
        start += seconds
    return [*stages, (result.stage, start)]
