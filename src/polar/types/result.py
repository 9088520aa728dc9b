"""What comes out of a session."""

from __future__ import annotations

from pydantic import FiniteFloat

from polar.types.base import Id, Strict
from polar.types.certificate import Certificate
from polar.types.session import EarlierAttempt, Stage
from polar.types.trace import TrajectoryStatistics


class Score(Strict):
    reward: FiniteFloat | None
    """None: no verdict could be reached, which is not a reward of zero."""
    trace_rewards: tuple[FiniteFloat, ...] | None = None
    metrics: dict[str, float] = {}
    reasons: tuple[str, ...] = ()


class Failure(Strict):
    where: str
    """The stage or part that failed: `init`, `harness`, `engine`, `builder`, `evaluator`, ..."""
    type: str
    message: str
    policy: bool = False
    """True: the policy's own doing, so its score counts. False: infrastructure, not for the baseline."""


class SessionResult(Strict):
    session_id: Id
    task_id: Id
    index: int
    attempt: int
    stage: Stage
    attempts: tuple[EarlierAttempt, ...] = ()
    """The attempts before this one, each with the reason why it has no result."""
    score: Score | None = None
    failure: Failure | None = None
    statistics: TrajectoryStatistics = TrajectoryStatistics()
    certificate: Certificate | None = None
    """Of the trajectory, made when it was built; `polar audit` makes it again. None where nothing was built."""
    traces: str | None = None
    """Reference to the trajectory blob: a path relative to the run folder."""
    kept: tuple[str, ...] = ()
    """Files and folders that were kept, relative to the session's folder on the node that ran it."""
    left_out: tuple[str, ...] = ()
    """`path: why` of what was to be kept and is not there, or not whole."""
    exit_code: int | None = None
    ended_by: str = ""
    """The budget that ended the session, where one did: `max_calls` or `max_tokens`."""
    policy_updates: int = 0
    """Changes of the policy version from the session's first call to its end."""
    stale: bool = False
    """More of them than the task allows."""
    stage_s: dict[str, float] = {}
    """Seconds spent in each stage, queueing listed apart as `QUEUED` and `READY`."""
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    """What the node's machine could not give: paths that are the same in all samples, for instance."""

    @property
    def broken_off_stale(self) -> bool:
        """The task's bound has ended it: what another attempt would bring is not asked for any more."""
        return self.failure is not None and self.failure.where == "policy"
