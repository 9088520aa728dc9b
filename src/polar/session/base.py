"""The ports of a session: where sessions come from, where their calls are captured, how far the policy has moved.

The gateway implements `Slots` and `PolicyClock`, and `node/` connects it to the pipeline; a task file or the
rollout server implements `SessionSource`.
"""

from __future__ import annotations

from typing import Protocol

from polar.types import (
    Call,
    CallProfile,
    CallsOutcome,
    Lease,
    SessionResult,
    SessionSockets,
    Slot,
    Stage,
    Trajectory,
    Waits,
)


class SessionSource(Protocol):
    async def lease(self, room: int) -> list[Lease]:
        """Up to `room` sessions to run now; an empty list: there will be no more."""
        ...

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        """Receives a session's result. Called exactly once for each lease."""
        ...


class Slots(Protocol):
    async def open(self, lease: Lease, profile: CallProfile, sockets: SessionSockets) -> Slot: ...

    async def seal(self, session_id: str) -> None:
        """Refuses and does not record further calls, and aborts running generations."""
        ...

    async def calls(self, session_id: str) -> list[Call]: ...

    def outcome(self, session_id: str) -> CallsOutcome:
        """Facts about the session's calls, for the verdict."""
        ...

    def waits(self, session_id: str) -> Waits:
        """How long the session has waited for its model so far, which does not count against `budgets.run_s`."""
        ...

    async def close(self, session_id: str) -> None:
        """Frees the slot; the calls stay in the journal."""
        ...


class PolicyClock(Protocol):
    """How far the policy has moved on while a session runs."""

    def updates_of(self, session_id: str) -> int:
        """Changes of the version since the session's first call; 0 before it."""
        ...

    def versions_of(self, session_id: str) -> tuple[str, str]:
        """The version of the session's first call, and the current one."""
        ...

    def forget(self, session_id: str) -> None: ...


class Watcher(Protocol):
    """Is notified of stage changes: the journal, a progress display."""

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None: ...
