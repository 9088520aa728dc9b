"""The sessions a node has leased from the server, and what to do with each when it ends.

An entry lasts from the lease until the server has accepted the session's end. A node runs one attempt of a session
at a time, because folders, slots and the journal know a session by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from polar.types import HeldSession, Lease, Stage


class Disposition(IntEnum):
    """What to do when the session ends. It may change to a later value of this list, not to an earlier one."""

    RUN = 0
    """Upload its result."""
    HAND_BACK = 1
    """Cancelled because the node stops: the server runs it again elsewhere."""
    CANCEL = 2
    """Cancelled because the server wants it: upload its result."""
    LOST = 3
    """The server has taken it away: cancelled, and not reported."""


@dataclass
class LeaseEntry:
    session_id: str
    attempt: int
    stage: Stage = Stage.QUEUED
    """Never a final one: a session ends when the server has accepted its result."""
    disposition: Disposition = Disposition.RUN
    cancel_reason: str = ""
    """Of the server, for the result."""
    delivering: bool = False
    """Its end is on the way to the server, which may have it before the heartbeat that still names the session."""

    @property
    def lost(self) -> bool:
        return self.disposition is Disposition.LOST


@dataclass
class LeaseTable:
    _entries: dict[str, LeaseEntry] = field(default_factory=dict[str, LeaseEntry])
    _waiting: list[Lease] = field(default_factory=list[Lease])
    """Leases of sessions whose earlier attempt has not ended here."""

    def __iter__(self) -> Iterator[LeaseEntry]:
        return iter(list(self._entries.values()))

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def get(self, session_id: str, attempt: int | None = None) -> LeaseEntry | None:
        entry = self._entries.get(session_id)
        return entry if entry and attempt in (None, entry.attempt) else None

    def put(self, leases: tuple[Lease, ...]) -> None:
        """A session that is leased again while its lease waits was taken away before: only the newest begins."""
        again = {lease.session.session_id for lease in leases}
        self._waiting = [lease for lease in self._waiting if lease.session.session_id not in again]
        self._waiting.extend(leases)

    def take(self, room: int) -> list[Lease]:
        """The leases that can begin now; each gets its entry."""
        free = [lease for lease in self._waiting if lease.session.session_id not in self._entries][:room]
        for lease in free:
            session = lease.session
            self._waiting.remove(lease)
            self._entries[session.session_id] = LeaseEntry(session.session_id, session.attempt)
        return free

    def release(self, session_id: str) -> None:
        self._entries.pop(session_id, None)

    def drop_waiting(self, lost: set[tuple[str, int]] | None = None) -> None:
        """Forgets leases that did not begin: the given ones, or all."""
        self._waiting = [lease for lease in self._waiting if lost is not None and _key(lease) not in lost]

    def held_sessions(self, waited_s: Callable[[str], float] = lambda _: 0.0) -> tuple[HeldSession, ...]:
        """For the heartbeat: every session that the server has not taken away."""
        running = [(e.session_id, e.attempt, e.stage) for e in self._entries.values() if not e.lost]
        waiting = [(*_key(lease), Stage.QUEUED) for lease in self._waiting]
        return tuple(
            HeldSession(session_id=session_id, attempt=attempt, stage=stage, waited_s=waited_s(session_id))
            for session_id, attempt, stage in (*running, *waiting)
        )


def _key(lease: Lease) -> tuple[str, int]:
    return lease.session.session_id, lease.session.attempt
