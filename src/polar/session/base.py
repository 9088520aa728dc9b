"""What a session needs of the world, as narrow ports: where sessions come from, where calls are caught, and how
old the policy of its first call is.

The gateway fills `Slots` and `PolicyClock` and meets the pipeline in `node/`; a task file or the rollout server
fills `SessionSource`.
"""

from __future__ import annotations

import socket
from typing import Protocol

from polar.types import Call, CallProfile, CallsOutcome, Lease, SessionResult, Slot, Stage, Trajectory, Waits


class SessionSource(Protocol):
    async def lease(self, room: int) -> list[Lease]:
        """Up to `room` sessions to run now; an empty list means there will be no more."""
        ...

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        """Takes a session's result. Called exactly once for each lease."""
        ...


class Slots(Protocol):
    async def open(self, lease: Lease, profile: CallProfile, listener: socket.socket | None) -> Slot:
        """`listener`: in the session's own network. None: the session reaches the gateway's address."""
        ...

    async def seal(self, session_id: str) -> None:
        """From now on calls get a hard stop and are not recorded; running generations are aborted."""
        ...

    async def calls(self, session_id: str) -> list[Call]: ...

    def outcome(self, session_id: str) -> CallsOutcome:
        """What became of the session's calls, for the verdict."""
        ...

    def waits(self, session_id: str) -> Waits:
        """How long the session has waited for its model so far. It does not count against `budgets.run_s`."""
        ...

    async def close(self, session_id: str) -> None:
        """Forgets the session; its calls stay in the journal."""
        ...


class PolicyClock(Protocol):
    """How far the policy has moved on while a session runs."""

    def updates_of(self, session_id: str) -> int:
        """Changes of the version since the session's first call; none before it."""
        ...

    def versions_of(self, session_id: str) -> tuple[str, str]:
        """Of the session's first call, and now."""
        ...

    def forget(self, session_id: str) -> None: ...


class Watcher(Protocol):
    """Who wants to see stage changes: the journal, a progress display."""

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None: ...
