"""What a gateway node and the server send each other."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import Field, FiniteFloat

from polar.types.base import MAX_COUNT, MAX_CURSOR, Id, Strict
from polar.types.call import Call
from polar.types.service.abilities import NodeAbilities
from polar.types.service.log import LogLine
from polar.types.service.policy import Policy
from polar.types.session import Lease, Stage
from polar.types.trace import Trajectory


class Registration(Strict):
    name: str = Field(min_length=1, max_length=200)
    """For people: host and process."""
    slots: int = Field(ge=1)
    """Sessions that the node can run at once."""
    abilities: NodeAbilities


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
    waited_s: FiniteFloat = Field(default=0.0, ge=0)
    """Time in RUNNING spent waiting for the model, which does not count against `budgets.run_s`."""


NodePart = Literal["engine", "disk", "descriptors", "runtime"]
"""What a node needs to run sessions."""


class Sickness(Strict):
    """Why a node takes no sessions at the moment."""

    part: NodePart
    why: str = Field(max_length=2000)
    since: float
    """Unix seconds."""


class EngineUse(Strict):
    """What a node's calls did since the node started."""

    calls: int = Field(default=0, ge=0, le=MAX_CURSOR)
    """That have ended."""
    failed_calls: int = Field(default=0, ge=0, le=MAX_CURSOR)
    """Of these, how many failed through infrastructure."""
    sampled_calls: int = Field(default=0, ge=0, le=MAX_CURSOR)
    """Of these, how many sampled at least one token."""
    prompt_tokens: int = Field(default=0, ge=0, le=MAX_CURSOR)
    sampled_tokens: int = Field(default=0, ge=0, le=MAX_CURSOR)
    first_token_s: FiniteFloat = Field(default=0.0, ge=0, le=MAX_CURSOR)
    """Time from request to first sampled token, summed over `sampled_calls`."""
    call_s: FiniteFloat = Field(default=0.0, ge=0, le=MAX_CURSOR)
    """Time from request to last token, summed over the same calls."""


MAX_LINES = 50
"""Log lines in one heartbeat."""


class Heartbeat(Strict):
    sessions: tuple[HeldSession, ...] = ()
    generating: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Generations under way."""
    revision: int | None = Field(default=None, ge=0, le=MAX_COUNT)
    """Of the policy that the node followed when it counted them; None: it has received none."""
    sick: Sickness | None = None
    """Why the node leases nothing at the moment; None: it is well."""
    use: EngineUse | None = None
    """None: the node does not count."""
    log: tuple[LogLine, ...] = Field(default=(), max_length=MAX_LINES)
    """The oldest warnings and errors of the node that no heartbeat has delivered."""
    log_number: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Of the first of these lines, counted since the node started: the server drops lines that it has already."""
    abilities: NodeAbilities | None = None
    """What the node can run now; None: as it last said."""


class HeartbeatReply(Strict):
    cancel: tuple[Id, ...] = ()
    """Sessions that the node must stop and report as CANCELLED."""
    cancel_reasons: dict[Id, str] = {}
    """For the results of those that were cancelled for another reason than a client's request."""
    lost: tuple[Id, ...] = ()
    """Sessions that no longer belong to the node: it must stop them and report nothing."""
    watched: tuple[Id, ...] = ()
    """Sessions that a person looks at: the node uploads what they have done so far."""
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
    abilities: NodeAbilities | None = None
    """What it can run. None: it registered at an older Polar, and gets no sessions until it registers again."""


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
