"""A session: its stages and their order, its lease, and its address at the gateway."""

from __future__ import annotations

import socket
import ssl
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from polar.types.base import Id, Strict
from polar.types.task import TaskRequest


class Stage(StrEnum):
    QUEUED = "QUEUED"
    INIT = "INIT"
    READY = "READY"
    RUNNING = "RUNNING"
    POSTRUN = "POSTRUN"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self in FINAL_STAGES


FINAL_STAGES = frozenset({Stage.COMPLETED, Stage.FAILED, Stage.TIMED_OUT, Stage.CANCELLED})
_BROKEN_OFF = frozenset({Stage.FAILED, Stage.TIMED_OUT, Stage.CANCELLED})
TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.QUEUED: frozenset({Stage.INIT, Stage.CANCELLED, Stage.FAILED}),
    Stage.INIT: _BROKEN_OFF | {Stage.READY},
    Stage.READY: frozenset({Stage.RUNNING, Stage.CANCELLED, Stage.FAILED}),
    Stage.RUNNING: _BROKEN_OFF | {Stage.POSTRUN},
    Stage.POSTRUN: FINAL_STAGES,
    **{stage: frozenset() for stage in FINAL_STAGES},
}


class IllegalTransition(ValueError):
    """A stage would be skipped or repeated."""


class Session(Strict):
    """One independent attempt at a task."""

    session_id: Id
    task_id: Id
    index: int = Field(ge=0)
    """Which sample of its task this is."""
    attempt: int = Field(default=1, ge=1)
    """Grows when a lost session runs again; the result of an older attempt is refused."""
    stage: Stage = Stage.QUEUED
    node_id: str | None = None

    def advance(self, stage: Stage) -> Session:
        if stage not in TRANSITIONS[self.stage]:
            raise IllegalTransition(f"session {self.session_id}: {self.stage} cannot become {stage}")
        return self.model_copy(update={"stage": stage})


class EarlierAttempt(Strict):
    """An attempt that ended without a result; the session ran again."""

    attempt: int = Field(ge=1)
    node: str = ""
    """The name of the node that ran it."""
    where: str
    """The part that failed: `engine`, `disk`, `descriptors`, `runtime`; `node`: the node stopped or was lost."""
    why: str
    counted: bool = False
    """The node looked healthy, so the failure counts against the session's bound (`node.max_failures`)."""


class Lease(Strict):
    """A session given to a node, with all that is needed to run it."""

    session: Session
    task: TaskRequest
    earlier: tuple[EarlierAttempt, ...] = ()
    """The attempts before this one, oldest first."""


class SessionSockets(NamedTuple):
    """Sockets that listen in a session's own network, for its gateway to serve."""

    plain: socket.socket | None = None
    """None: the session can reach the gateway's own address."""
    https: tuple[socket.socket, ssl.SSLContext] | None = None
    """Where the hosts lead that the session intercepts. None: it intercepts none."""


class Slot(Strict):
    """A session's address at its gateway."""

    base_url: str
    """Without a version segment; a harness appends what its dialect needs."""
    key: str = Field(repr=False)
    model: str
    context_tokens: int
