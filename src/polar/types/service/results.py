"""What clients are told of tasks, sessions, groups and results, and what they ask for."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from polar.types.base import MAX_CURSOR, Id, Strict
from polar.types.result import SessionResult
from polar.types.session import Stage


class SessionStatus(Strict):
    session_id: Id
    task_id: Id
    group_id: Id | None = None
    index: int
    attempt: int
    stage: Stage
    node_id: str | None = None
    cancel_requested: bool = False
    waits: str = ""
    """Why no node has it yet. Empty: a node has it, or it has ended; a list of sessions does not say it."""
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
    waits: str = ""
    """Why no node has its next session yet. Empty: none waits; a list of tasks does not say it."""


class GroupStatus(Strict):
    group_id: Id
    task_ids: tuple[Id, ...]
    sessions: int
    unfinished: int
    """Sessions without a result."""
    running: int = 0
    """Sessions that a node holds."""
    usable: int = 0
    """Sessions that are trainable; at `TaskRequest.enough` of them, the others are cancelled."""
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
    allow_gap: bool = False
    """Read on where retention has removed results that this client has not read; else that is an error."""
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
    kind: Literal["task", "stage", "result", "node", "policy", "gap"]
    """gap: retention has removed all events up to this cursor that the client has not read."""
    task_id: str | None = None
    session_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = {}
