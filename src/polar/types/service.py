"""What server, nodes and clients send each other over HTTP."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, FiniteFloat, StringConstraints

from polar.types.base import Id, Strict
from polar.types.call import Call
from polar.types.result import SessionResult
from polar.types.session import Lease, Stage
from polar.types.trace import Trajectory

MAX_COUNT = 2**31 - 1
"""The largest value of an integer column in the database."""
MAX_CURSOR = 2**63 - 1
MAX_POINTS = 1000
"""Training points in one request."""
MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._/@^-]{0,99}$")]
"""Such as `reward`, `pass@1` or `loss/policy`."""


class SessionStatus(Strict):
    session_id: Id
    task_id: Id
    group_id: Id | None = None
    index: int
    attempt: int
    stage: Stage
    node_id: str | None = None
    cancel_requested: bool = False
    result: SessionResult | None = None


class TaskStatus(Strict):
    task_id: Id
    group_id: Id | None = None
    num_samples: int
    submitted: float
    """Unix seconds."""
    stages: dict[str, int]
    """Number of sessions in each stage."""
    done: bool
    """Every session has its result."""
    session_ids: tuple[Id, ...] = ()


class GroupStatus(Strict):
    group_id: Id
    task_ids: tuple[Id, ...]
    sessions: int
    unfinished: int
    """Sessions without a result."""
    done: bool
    """Every session of every task has its result."""
    cursor: int | None = None
    """Of its last result, once it is done."""


class CancelReply(Strict):
    cancelled: int
    """Sessions that had not ended."""


class ResultEntry(Strict):
    cursor: int
    """Continue with the results after this one."""
    result: SessionResult


class ResultPage(Strict):
    results: tuple[ResultEntry, ...]
    cursor: int
    """Where to continue: of the last result of the page, or the one in the request if the page is empty."""
    all_done: bool = False
    """Every selected session has its result: on this page, on the next, or at a cursor before the request's."""


class Selection(Strict):
    """What a client follows: the results or groups of these tasks and of these groups, after a cursor."""

    after: int = Field(default=0, ge=0, le=MAX_CURSOR)
    limit: int = Field(default=100, ge=1, le=1000)
    wait_s: float = Field(default=0.0, ge=0, le=60)
    """How long to wait for the first one."""
    task_ids: tuple[Id, ...] | None = Field(default=None, max_length=10_000)
    group_ids: tuple[Id, ...] | None = Field(default=None, max_length=10_000)
    """With neither, everything is followed."""

    @property
    def everything(self) -> bool:
        return self.task_ids is None and self.group_ids is None


class FinishedGroup(Strict):
    """A group of which every session has its result."""

    group_id: Id
    cursor: int
    """Of its last result. Later, if the group gained a task after it was done."""
    results: tuple[SessionResult, ...]
    """In the order of submission."""


class GroupPage(Strict):
    """Groups in the order in which they were done."""

    groups: tuple[FinishedGroup, ...]
    cursor: int
    """Where to continue: of the last group of the page, or the one in the request if the page is empty."""
    all_done: bool = False
    """Every selected group is done: on this page, on the next, or at a cursor before the request's."""


class Event(Strict):
    """A change at the server."""

    cursor: int
    at: float
    kind: Literal["task", "stage", "result", "node", "policy"]
    task_id: str | None = None
    session_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = {}


class Policy(Strict):
    """Version of the weights, and whether generation is paused, for every node."""

    version: str = ""
    """Recorded on each call that begins under it."""
    paused: bool = False
    """Calls wait, with heartbeats, until generation is resumed."""
    updates: int = Field(default=0, ge=0)
    """How often the version has changed; counted by the server."""
    revision: int = Field(default=0, ge=0)
    """How often anything here has changed. A node reports the revision it follows."""


class PolicyChange(Strict):
    """A trainer's change of the policy. Only the server sets the counts."""

    version: str | None = None
    """None: unchanged."""
    paused: bool | None = None
    """None: unchanged."""


class Drain(Strict):
    """Progress of a pause: what is still being generated."""

    policy: Policy
    generating: int
    """Generations under way at the live nodes, as last reported."""
    unheard: tuple[Id, ...] = ()
    """Live nodes that have not acknowledged the current policy."""

    @property
    def done(self) -> bool:
        """Nothing is generated until generation is resumed."""
        return self.policy.paused and not self.unheard and self.generating == 0


class TrainingPoint(Strict):
    """What a trainer measured at one step."""

    step: int = Field(ge=0, le=MAX_COUNT)
    phase: Literal["train", "eval"] = "train"
    """Evaluation on held-out tasks is kept apart from the rewards of training."""
    at: FiniteFloat = Field(default_factory=time.time, ge=0, le=1e11)
    """Unix seconds."""
    metrics: dict[MetricName, FiniteFloat] = Field(min_length=1, max_length=200)


class TrainingReport(Strict):
    points: tuple[TrainingPoint, ...] = Field(min_length=1, max_length=MAX_POINTS)


class TrainingRun(Strict):
    run_id: Id
    points: int
    last_step: int
    started: float
    """When its first point came: Unix seconds."""
    updated: float
    """When its newest point came."""


class TrainingPage(Strict):
    points: tuple[TrainingPoint, ...]
    """In the order in which they came; a point that was replaced has its new place."""
    cursor: int
    """Where to continue."""


class Registration(Strict):
    name: str = Field(min_length=1, max_length=200)
    """For people: host and process."""
    slots: int = Field(ge=1)
    """Sessions that the node can run at once."""


class NodeCredentials(Strict):
    node_id: Id
    key: str = Field(repr=False)
    heartbeat_s: float
    """Interval of the node's heartbeats; a lease survives about three missed ones."""


class LeaseRequest(Strict):
    room: int = Field(ge=1, le=10_000)
    wait_s: float = Field(default=20.0, ge=0, le=60)
    """How long to wait if there is no session."""


class LeaseReply(Strict):
    leases: tuple[Lease, ...]
    policy: Policy


class HeldSession(Strict):
    session_id: Id
    attempt: int = Field(ge=1)
    stage: Stage


NodePart = Literal["engine", "disk", "descriptors", "runtime"]
"""What a node needs to run sessions."""


class Sickness(Strict):
    """Why a node takes no sessions at the moment."""

    part: NodePart
    why: str = Field(max_length=2000)
    since: float
    """Unix seconds."""


class Heartbeat(Strict):
    sessions: tuple[HeldSession, ...] = ()
    generating: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generations under way."""
    revision: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Of the policy that the node followed when it counted them; None: it has received none."""
    sick: Sickness | None = None
    """Why the node leases nothing at the moment; None: it is well."""


class HeartbeatReply(Strict):
    cancel: tuple[Id, ...] = ()
    """Sessions that the node must stop and report as CANCELLED."""
    lost: tuple[Id, ...] = ()
    """Sessions that no longer belong to the node: it must stop them and report nothing."""
    policy: Policy


class HandBack(Strict):
    """A node that stops or cannot run a session returns it; the session runs again as the next attempt."""

    session_id: Id
    attempt: int = Field(ge=1)
    where: str = Field(default="node", max_length=100)
    why: str = Field(default="the node stopped", max_length=2000)
    counted: bool = False
    """See `EarlierAttempt`."""


class NodeStatus(Strict):
    node_id: Id
    name: str
    slots: int
    registered: float
    last_seen: float
    alive: bool
    sessions: tuple[Id, ...] = ()
    generating: int = 0
    """Generations under way, as last reported."""
    heard: bool = False
    """It has acknowledged the current policy."""
    sick: Sickness | None = None
    """Why it leases nothing at the moment, as last reported."""
    draining: bool = False
    """It gets no more sessions, because a client asked for that; those that it has end as usual."""


class NodeDrain(Strict):
    """Whether a node gets more sessions."""

    draining: bool = True


class SessionFile(msgspec.Struct, frozen=True):
    """A log or kept file of a session."""

    path: str
    """Relative to the session's folder, as `logs/harness.stdout`."""
    size_bytes: int
    content: bytes
    """All of it, the end of it, or nothing, as far as the upload had room."""


class SessionUpload(msgspec.Struct, frozen=True):
    """A session's result with its trajectory, calls and files, as one binary blob (`types.codec`)."""

    result: bytes
    """`SessionResult` as JSON."""
    trajectory: Trajectory | None
    calls: tuple[Call, ...] = ()
    files: tuple[SessionFile, ...] = ()
    """Logs and kept files, up to `node.upload_bytes`."""
