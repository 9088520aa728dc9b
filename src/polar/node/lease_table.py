"""The sessions a node holds from the server, and what is to become of each when it ends.

A session is held from its lease until the server has taken its end. One of its attempts at a time: places, slots
and the journal of a node know a session by its id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from polar.types import HeldSession, Lease, Stage


class Fate(IntEnum):
    """What becomes of the session's end; a later one of this list is not overruled by an earlier."""

    RUN = 0
    """Its result is uploaded."""
    HAND_BACK = 1
    """Broken off because the node stops: it runs again elsewhere."""
    CANCEL = 2
    """Broken off because the server wants it so: its result is uploaded."""
    LOST = 3
    """Not this node's any more: broken off, and nobody is told."""


@dataclass
class Held:
    session_id: str
    attempt: int
    stage: Stage = Stage.QUEUED
    """Never a final one: a session is done when its result is taken, not before."""
    fate: Fate = Fate.RUN

    @property
    def broken_off(self) -> bool:
        return self.fate is not Fate.RUN


@dataclass
class Holdings:
    _held: dict[str, Held] = field(default_factory=dict[str, Held])
    _waiting: list[Lease] = field(default_factory=list[Lease])
    """Leases of sessions whose earlier attempt is still ending here."""

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def get(self, session_id: str, attempt: int | None = None) -> Held | None:
        held = self._held.get(session_id)
        return held if held and attempt in (None, held.attempt) else None

    def put(self, leases: tuple[Lease, ...]) -> None:
        self._waiting.extend(leases)

    def take(self, room: int) -> list[Lease]:
        """The leases that can begin now; from here on they are held."""
        free = [lease for lease in self._waiting if lease.session.session_id not in self._held][:room]
        for lease in free:
            session = lease.session
            self._waiting.remove(lease)
            self._held[session.session_id] = Held(session.session_id, session.attempt)
        return free

    def release(self, session_id: str) -> None:
        self._held.pop(session_id, None)

    def drop_waiting(self, lost: set[tuple[str, int]] | None = None) -> None:
        """Forgets leases that did not begin: the given ones, or all."""
        kept = [lease for lease in self._waiting if lost is not None and _key(lease) not in lost]
        self._waiting = kept

    def told(self) -> tuple[HeldSession, ...]:
        """All that the server still takes for ours."""
        held = [h for h in self._held.values() if h.fate is not Fate.LOST]
        sessions = [HeldSession(session_id=h.session_id, attempt=h.attempt, stage=h.stage) for h in held]
        waiting = [
            HeldSession(session_id=session_id, attempt=attempt, stage=Stage.QUEUED)
            for session_id, attempt in map(_key, self._waiting)
        ]
        return (*sessions, *waiting)


def _key(lease: Lease) -> tuple[str, int]:
    return lease.session.session_id, lease.session.attempt
