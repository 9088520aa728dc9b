"""The outcome of a session, and what the gateway knows of its calls when the run has ended."""

from __future__ import annotations

import math
from typing import Any, Literal, Self, cast

import msgspec
from pydantic import AliasChoices, ConfigDict, Field, FiniteFloat, computed_field, model_validator

from polar.types.base import Id, Strict
from polar.types.certificate import Certificate
from polar.types.health import Health
from polar.types.session import EarlierAttempt, Stage
from polar.types.task import Spec
from polar.types.trace import TrajectoryStatistics


class Score(Strict):
    reward: FiniteFloat | None
    """None: there is no verdict, which is not a reward of zero."""
    trace_rewards: tuple[FiniteFloat, ...] | None = None
    """One for each trace, in the trajectory's order."""
    call_rewards: dict[str, FiniteFloat] | None = None
    """By call id. For the tokens of these calls they replace the reward of the trace or of the session."""
    metrics: dict[str, float] = {}
    reasons: tuple[str, ...] = ()
    parts: dict[str, ScorePart] = {}
    """By name: the scores from which an evaluator made this one."""

    def finite(self) -> Self:
        """Without metrics that are NaN or infinite, which JSON cannot express; the reasons name them."""
        metrics = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
        lost = sorted(self.metrics.keys() - metrics.keys())
        reasons = (*self.reasons, *(f"metric {name} was not a finite number" for name in lost))
        parts = {name: part.finite() for name, part in self.parts.items()}
        return self.model_copy(update={"metrics": metrics, "reasons": reasons, "parts": parts})

    def without_reward(self) -> Self:
        """Keeps metrics and reasons, of its parts too."""
        parts = {name: part.without_reward() for name, part in self.parts.items()}
        return self.model_copy(
            update={"reward": None, "trace_rewards": None, "call_rewards": None, "parts": parts}
        )


class ScorePart(Score):
    """One of the scores from which another is made."""

    weight: FiniteFloat = 1.0

    @classmethod
    def of(cls, score: Score, weight: float = 1.0) -> ScorePart:
        return cls.model_validate(score.model_dump() | {"weight": weight})


Score.model_rebuild()


class Failure(Strict):
    model_config = ConfigDict(serialize_by_alias=True)

    where: str
    """The stage or part that failed: `init`, `harness`, `engine`, `builder`, `evaluator`, ..."""
    type: str
    """What happened, such as `TimedOut`; docs/verdicts.md lists them."""
    message: str
    agent: bool = Field(
        default=False, validation_alias=AliasChoices("policy", "agent"), serialization_alias="policy"
    )
    """True: the agent caused it, and the reward is 0.0. False: infrastructure did, and there is no reward. In JSON
    the key is `policy`, as in all results that are stored and sealed already."""

    @property
    def infrastructure(self) -> bool:
        return not self.agent


UntrainableReason = Literal[
    "",
    "not_final",
    "stale",
    "cancelled",
    "infrastructure",
    "no_reward",
    "no_token_ids",
    "no_trainable_tokens",
    "not_certified",
    "not_exact",
]
"""Why a session may not be trained on; docs/service.md explains each."""
NO_TOKEN_IDS = "no_token_ids"
"""Why calls of an endpoint without token ids are dropped. One such call makes a session untrainable."""
DERIVED = frozenset({"trainable", "untrainable_reason"})
"""Computed fields of a result; ignored when a result is read."""


class SessionResult(Strict):
    """The outcome of a session. Trainers look at `reward`, `trainable` and `failure`; traces are stored apart."""

    session_id: Id
    task_id: Id
    group_id: Id = ""
    """Sessions whose rewards are compared have the same: the task's `group_id`, else its `task_id`."""
    index: int
    attempt: int
    stage: Stage
    attempts: tuple[EarlierAttempt, ...] = ()
    """Earlier attempts, each with the reason why it has no result."""
    score: Score | None = None
    failure: Failure | None = None
    statistics: TrajectoryStatistics = TrajectoryStatistics()
    certificate: Certificate | None = None
    """Of the trajectory, made when it was built; `polar audit` makes it again. None: nothing was built."""
    health: Health | None = None
    """Whether its data can be relied on. None: it made no calls, or was stored by an older Polar."""
    traces: str | None = None
    """File of the trajectory, relative to the run folder."""
    kept: tuple[str, ...] = ()
    """Files and folders that were kept, relative to the session's folder on the node that ran it."""
    left_out: tuple[str, ...] = ()
    """`path: why` of what was to be kept and is missing or incomplete."""
    exit_code: int | None = None
    ended_by: str = ""
    """Name of the exhausted budget that ended the session: `max_calls` or `max_tokens`; else empty."""
    cancel_reason: str = ""
    """Why the server cancelled it; empty: a client asked for that, or it was not cancelled."""
    waited_s: float = 0.0
    """Time in RUNNING spent waiting for the model; does not count against `budgets.run_s`."""
    policy_updates: int = 0
    """Changes of the policy version from the session's first call to its end."""
    stale: bool = False
    """More policy updates than the task allows."""
    stage_s: dict[str, float] = {}
    """Seconds in each stage; `QUEUED` and `READY` are waiting."""
    versions: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    """What the node's machine could not provide, such as equal paths in all samples, and what the renderer
    added to prompts."""
    seal: str = ""
    """Digest of the result and its task, made by the node that ran the session (`store/seal.py`). Empty: the
    result was made by the server, or by an older Polar."""

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, value: Any) -> Any:
        """Ignores computed fields; a result without a group is in the group of its task."""
        if not isinstance(value, dict):
            return value
        given = {name: each for name, each in cast("dict[str, Any]", value).items() if name not in DERIVED}
        return given if given.get("group_id") else given | {"group_id": given.get("task_id")}

    @property
    def reward(self) -> float | None:
        """The score's reward; None if the session failed through infrastructure."""
        if self.failed_by_infrastructure or self.score is None:
            return None
        return self.score.reward

    @property
    def failed_by_infrastructure(self) -> bool:
        return self.failure is not None and self.failure.infrastructure

    @computed_field
    @property
    def trainable(self) -> bool:
        """Whether its traces may go into a batch."""
        return not self.untrainable_reason

    @property
    def in_baseline(self) -> bool:
        """Whether its reward is compared with those of its group: also if it sampled and no token of it can be
        trained on, as when its only reply never ended. That is what the policy did."""
        without_tokens = self.untrainable_reason == "no_trainable_tokens" and self.statistics.sampled_tokens > 0
        return self.trainable or without_tokens

    @computed_field
    @property
    def untrainable_reason(self) -> UntrainableReason:
        """The first that applies; empty if the session is trainable."""
        reasons: dict[UntrainableReason, bool] = {
            "not_final": not self.stage.final,
            "stale": self.stale,
            "cancelled": self.stage is Stage.CANCELLED,
            "infrastructure": self.failed_by_infrastructure,
            "no_reward": self.reward is None,
            "no_token_ids": NO_TOKEN_IDS in self.statistics.dropped,
            "no_trainable_tokens": not self.statistics.trainable_tokens,
            "not_certified": self.certificate is None,
            "not_exact": self.certificate is not None and not self.certificate.exact,
            "": True,
        }
        return next(reason for reason, applies in reasons.items() if applies)

    @property
    def broken_off_stale(self) -> bool:
        """Ended because it was stale; it is not run again."""
        return self.failure is not None and self.failure.where == "policy"


class LaterScore(Strict):
    """What an evaluator said of a stored session later (`polar rescore`). The session's own result stays as it is;
    this stands beside it."""

    session_id: Id
    attempt: int
    result_seal: str
    """Of the result that was there: the seal below covers it, so a later score of another result is noticed."""
    evaluator: Spec
    score: Score | None = None
    failure: Failure | None = None
    """Why there is no verdict, or what the agent did that scores 0.0."""
    notes: tuple[str, ...] = ()
    """What could not be restored of the session's workspace."""
    made_at: float
    """Unix seconds."""
    versions: dict[str, str] = {}
    seal: str = ""
    """Digest of all the above (`store/seal.py`)."""

    @property
    def reward(self) -> float | None:
        """None: there is no verdict, which is not a reward of zero."""
        return None if self.score is None else self.score.reward


class Waits(msgspec.Struct, frozen=True):
    """How long a session waited for its model: at least one call had no token yet, and none was being sampled."""

    paused_s: float = 0.0
    """While generation was paused."""
    engine_s: float = 0.0
    """For the gateway or the engine: rendering, a queue, the first token."""
    silent_s: float = 0.0
    """Time since the last new token of the calls under way; 0.0 if there are none."""

    @property
    def total_s(self) -> float:
        return self.paused_s + self.engine_s


class Refusal(msgspec.Struct, frozen=True):
    """A request of the harness that the gateway answered with an error."""

    code: str
    message: str
    cause: Failure | None = None
    """The failure on our side, if the request itself was valid."""


class CallsOutcome(msgspec.Struct, frozen=True):
    failures: tuple[Failure, ...] = ()
    """One for each call that failed through infrastructure and was not retried with success, oldest first."""
    refusal: Refusal | None = None
    """The last refused request, unless a later one was answered."""
    exhausted: str = ""
    """Name of the exhausted budget that ended the session: `max_calls` or `max_tokens`; else empty."""
    refusals: int = 0
    """Requests that the gateway answered with an error, without those after the end of a budget."""
