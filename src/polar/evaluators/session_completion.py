"""The default evaluator: did the harness end well, and did its model calls go through the gateway."""

from __future__ import annotations

from pydantic import BaseModel

from polar.errors import EvaluatorError
from polar.evaluators.base import Evidence
from polar.types import Score, Strict, TrajectoryStatistics


class NoOptions(Strict):
    """Without options."""


class SessionCompletion:
    Options: type[BaseModel] = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self._options = options

    async def evaluate(self, evidence: Evidence) -> Score:
        """1.0 for a harness that exited with 0 and has trainable tokens, else 0.0 with the reason."""
        statistics = TrajectoryStatistics.model_validate(evidence.trajectory.statistics)
        if evidence.exit_code == 0 and not statistics.calls:
            raise EvaluatorError(
                "the harness exited with 0 but no model call was captured: it did not use the base URL of its slot"
            )
        shortcoming = _bad_end(evidence) or _nothing_trainable(statistics)
        return Score(
            reward=0.0 if shortcoming else 1.0,
            metrics={"calls": statistics.calls, "trainable_tokens": statistics.trainable_tokens},
            reasons=(shortcoming,) if shortcoming else (),
        )


def _bad_end(evidence: Evidence) -> str:
    if evidence.timed_out:
        return "the harness ran out of time"
    if evidence.exit_code is None:
        return "the harness was killed before it ended"
    return f"the harness exited with {evidence.exit_code}" if evidence.exit_code else ""


def _nothing_trainable(statistics: TrajectoryStatistics) -> str:
    if statistics.trainable_tokens:
        return ""
    causes = ", ".join(sorted(statistics.dropped))
    return f"none of the {statistics.calls} captured calls can be trained on ({causes})"
