"""What a person watches: the state of the service at a glance, its sessions, groups and log.

The dashboard and `polar top` show the same values.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from polar.types.base import Id, Strict
from polar.types.health import HealthVerdict
from polar.types.result import UntrainableReason
from polar.types.service.log import LogLine
from polar.types.service.nodes import NodeStatus
from polar.types.service.policy import Policy
from polar.types.session import Stage


class EngineRate(Strict):
    """What the live nodes' calls did in the last `over_s` seconds, by the counters in their heartbeats."""

    over_s: float = 0.0
    """0: no node has reported twice yet."""
    calls_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    sampled_tokens_per_s: float = 0.0
    first_token_s: float | None = None
    """Mean time from a request to its first sampled token. None: no call ended."""
    call_s: float | None = None
    """Mean time from a request to its last token."""
    failed_calls: int = 0
    """Calls that failed through infrastructure."""


class FailureCount(Strict):
    where: str
    type: str
    agent: bool
    """True: the agent caused it, and it counts as reward 0. False: infrastructure did, and it counts nowhere."""
    count: int
    session_id: Id
    """The newest of them."""


class HarnessOutcomes(Strict):
    """Of one harness, over the newest sessions."""

    harness: str
    sessions: int
    trainable: int
    mean_reward: float | None = None
    """Over sessions with a reward."""
    calls_per_session: float = 0.0
    rows_per_session: float = 0.0
    """Traces; 1.0 if all calls of each session were merged into one."""
    merge_rate: float | None = None
    """Share of calls that continue another's tokens, among those that could. None: there are none."""
    sampled_tokens: int = 0
    run_s: float | None = None
    """Mean time in RUNNING."""


class GroupContrast(Strict):
    """Of the newest finished groups: whether their rewards differ, without which a group teaches nothing."""

    groups: int = 0
    without_contrast: int = 0
    """All rewards equal, or fewer than two."""
    mean_spread: float | None = None
    """Mean of the standard deviations of the groups' rewards."""


class StuckSession(Strict):
    """A session that has been in its stage for longer than its budget, or far longer than others."""

    session_id: Id
    task_id: Id
    stage: Stage
    since: float
    """Unix seconds."""
    node_id: str | None = None
    why: str
    """Such as `RUNNING for 900 s; budgets.run_s is 300`."""


class WaitReason(Strict):
    """Why sessions wait for a node."""

    why: str
    """Such as `no live node has the runtime docker (2 nodes: bubblewrap, local)`."""
    sessions: int
    task_id: Id
    """The first of their tasks."""


class Overview(Strict):
    at: float
    """Unix seconds."""
    version: str
    """Of Polar."""
    cursor: int = 0
    """The newest event that these values contain: follow `/v1/events` after it to know when they change."""
    policy: Policy
    stages: dict[str, int]
    """Number of sessions in each stage, final ones too."""
    oldest_queued_s: float | None = None
    """How long the first session of the queue has waited."""
    slots: int = 0
    """Run slots of live nodes that are well and not draining."""
    busy: int = 0
    """Sessions in RUNNING at live nodes."""
    nodes: tuple[NodeStatus, ...] = ()
    rate: EngineRate = EngineRate()
    window: int = 0
    """How many of the newest results the following count."""
    ended_per_minute: float | None = None
    harnesses: tuple[HarnessOutcomes, ...] = ()
    failures: tuple[FailureCount, ...] = ()
    untrainable: dict[UntrainableReason, int] = {}
    policy_updates: dict[int, int] = {}
    """Staleness: number of sessions by how often the weights changed under them."""
    stale: int = 0
    contrast: GroupContrast = GroupContrast()
    stuck: tuple[StuckSession, ...] = ()
    waiting: tuple[WaitReason, ...] = ()
    """Why sessions wait, the most first."""


class SessionFilter(Strict):
    """Which sessions to list. Everything given must hold."""

    stage: Stage | None = None
    open: bool | None = None
    """True: without a result; False: with one."""
    harness: str | None = Field(default=None, max_length=200)
    task_id: Id | None = None
    group_id: Id | None = None
    node_id: Id | None = None
    failed_by: Literal["agent", "infrastructure", "any"] | None = None
    failure_type: str | None = Field(default=None, max_length=200)
    untrainable: UntrainableReason | None = None
    reward_at_least: FiniteFloat | None = None
    reward_at_most: FiniteFloat | None = None
    text: str | None = Field(default=None, max_length=200)
    """Part of the session's, task's or group's id."""


class SessionRowView(Strict):
    """A session in a list."""

    number: int
    """The order of submission."""
    session_id: Id
    task_id: Id
    group_id: Id
    index: int
    attempt: int
    stage: Stage
    since: float | None = None
    """When it came into its stage: Unix seconds."""
    node_id: str | None = None
    harness: str
    runtime: str
    cancel_requested: bool = False
    reward: float | None = None
    trainable: bool | None = None
    """None: it has no result."""
    untrainable_reason: UntrainableReason = ""
    failure_where: str = ""
    failure_type: str = ""
    failed_by_agent: bool = False
    calls: int = 0
    traces: int = 0
    sampled_tokens: int = 0
    policy_updates: int = 0
    health: HealthVerdict | None = None


class SessionListPage(Strict):
    sessions: tuple[SessionRowView, ...]
    """The newest submitted first."""
    before: int | None = None
    """Continue with the sessions before this number. None: there are no more."""
    looked: int | None = None
    """The page is not full because so many sessions were looked at: older ones may fit too. None: it is as full as
    it can be."""


class GroupView(Strict):
    group_id: Id
    sessions: int
    unfinished: int
    rewards: tuple[float | None, ...]
    """Of the results so far, in the order in which they came. None: no verdict, or infrastructure failed."""
    mean: float | None = None
    spread: float | None = None
    """Standard deviation of the rewards."""
    contrast: bool = False
    """Its rewards differ."""


class GroupListPage(Strict):
    groups: tuple[GroupView, ...]
    """The newest first."""
    before: int | None = None
    """Continue with the groups before this number. None: there are no more."""


class LogPage(Strict):
    lines: tuple[LogLine, ...]
    """Oldest first."""
    cursor: int
    """Where to continue."""
