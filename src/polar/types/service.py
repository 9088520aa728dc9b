"""What server, nodes and clients say to each other over HTTP. Both ends import these; nothing else is shared."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import Field

from polar.types.base import Id, Strict
from polar.types.call import Call
from polar.types.result import SessionResult
from polar.types.session import Lease, Stage
from polar.types.trace import Trajectory

MAX_COUNT = 2**31 - 1
"""What a database column of counts holds."""


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
    """How many sessions are in each stage."""
    done: bool
    """Every session has its result; whether they are good ones the results say."""
    session_ids: tuple[Id, ...] = ()


class CancelReply(Strict):
    cancelled: int
    """Sessions that had not ended."""


class ResultEntry(Strict):
    cursor: int
    """Ask for results after this one to go on."""
    result: SessionResult


class ResultPage(Strict):
    results: tuple[ResultEntry, ...]
    cursor: int
    """Of the last result of the page, or the one asked from: where to go on."""


class Event(Strict):
    """A change anybody may watch."""

    cursor: int
    at: float
    kind: Literal["task", "stage", "result", "node", "policy"]
    task_id: str | None = None
    session_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = {}


class Policy(Strict):
    """How generation stands, for every node."""

    version: str = ""
    """Stamped on each call that begins under it."""
    paused: bool = False
    """Calls wait, kept awake, until generation is resumed."""
    updates: int = Field(default=0, ge=0)
    """How often the version has changed; the server counts."""
    revision: int = Field(default=0, ge=0)
    """How often anything of it has changed: who names this number has heard of all that stands here."""


class PolicyChange(Strict):
    """What a trainer wants changed. The counts are the server's, and not for anybody to set."""

    version: str | None = None
    """None: stays as it is."""
    paused: bool | None = None
    """None: stays as it is."""


class Drain(Strict):
    """How far a pause has come: what is still generated under it."""

    policy: Policy
    generating: int
    """Generations under way at the live nodes, as each has last told."""
    unheard: tuple[Id, ...] = ()
    """Live nodes that have not told yet that they follow the policy as it stands."""

    @property
    def done(self) -> bool:
        """Nothing is generated, and nothing will be before generation is resumed."""
        return self.policy.paused and not self.unheard and self.generating == 0


class Registration(Strict):
    name: str = Field(min_length=1, max_length=200)
    """For people: host and process."""
    slots: int = Field(ge=1)
    """Sessions the node can run at once."""


class NodeCredentials(Strict):
    node_id: Id
    key: str = Field(repr=False)
    heartbeat_s: float
    """How often the node must be heard of; a lease outlives about three missed beats."""


class LeaseRequest(Strict):
    room: int = Field(ge=1, le=10_000)
    wait_s: float = Field(default=20.0, ge=0, le=60)
    """How long to wait for a session when there is none."""


class LeaseReply(Strict):
    leases: tuple[Lease, ...]
    policy: Policy


class HeldSession(Strict):
    session_id: Id
    attempt: int = Field(ge=1)
    stage: Stage


NodePart = Literal["engine", "disk", "descriptors", "runtime"]
"""What a node needs to run sessions at all."""


class Sickness(Strict):
    """Why a node runs nothing for now."""

    part: NodePart
    why: str = Field(max_length=2000)
    since: float
    """Unix seconds."""


class Heartbeat(Strict):
    sessions: tuple[HeldSession, ...] = ()
    generating: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generations under way."""
    revision: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Of the policy the node followed when it counted them; None: it has heard of none."""
    sick: Sickness | None = None
    """Why the node leases nothing for now; None: it is well."""


class HeartbeatReply(Strict):
    cancel: tuple[Id, ...] = ()
    """Sessions the node shall break off and report as CANCELLED."""
    lost: tuple[Id, ...] = ()
    """Sessions that are not the node's any more: break off, report nothing."""
    policy: Policy


class HandBack(Strict):
    """A node that stops or cannot run a session gives it back: it runs again as the next attempt."""

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
    """Generations under way, as it has last told."""
    heard: bool = False
    """It follows the policy as it stands."""
    sick: Sickness | None = None
    """Why it leases nothing for now, as it has last told."""


class SessionUpload(msgspec.Struct, frozen=True):
    """A session's result with all it rests on, as one binary blob (`types.codec`)."""

    result: bytes
    """`SessionResult` as JSON."""
    trajectory: Trajectory | None
    calls: tuple[Call, ...] = ()
