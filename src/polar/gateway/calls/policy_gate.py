"""Which policy generates, whether generation is paused, and which policy sampled which tokens.

Calls that arrive during a pause wait, with heartbeats on their streams, and start under the new version. Calls
under way at a pause run to their end; `under_way` counts them, so that a trainer can wait for the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

from polar.engines.base import Piece
from polar.gateway.slots import CallWait
from polar.types import Policy, PolicySpan


@dataclass(frozen=True)
class PolicyStart:
    """The policy when a call started, or a session's first call."""

    version: str
    updates: int
    """Changes of the version that the gate had seen by then."""


class PolicyGate:
    def __init__(self) -> None:
        self.policy = Policy()
        self.under_way = 0
        """Generations that have started and not ended."""
        self._open = asyncio.Event()
        self._open.set()
        self._updates = 0
        self._first: dict[str, PolicyStart] = {}
        """By session: its first call."""
        self._watchers: list[Callable[[], None]] = []

    def set(self, policy: Policy) -> None:
        known, self.policy = self.policy, policy
        (self._open.clear if policy.paused else self._open.set)()
        # Counted here as well, because the sender may not count, or may start again from zero after a restart.
        updates = max(policy.updates - known.updates, int(policy.version != known.version))
        if updates > 0:
            self._updates += updates
            for watcher in self._watchers:
                watcher()

    @property
    def updates(self) -> int:
        """Changes of the version so far."""
        return self._updates

    def watch(self, watcher: Callable[[], None]) -> None:
        """Called after each change of the version."""
        self._watchers.append(watcher)

    @asynccontextmanager
    async def generating(self, session_id: str, wait: CallWait | None = None) -> AsyncGenerator[PolicyStart]:
        """Around one generation: waits while generation is paused, and reports the pause to `wait`."""
        if self.policy.paused:
            with wait.paused() if wait is not None else nullcontext():
                await self._resumed()
        start = PolicyStart(self.policy.version, self._updates)
        self._first.setdefault(session_id, start)
        self.under_way += 1
        try:
            yield start
        finally:
            self.under_way -= 1

    def updated_since(self, start: PolicyStart) -> bool:
        return self._updates > start.updates

    def updates_of(self, session_id: str) -> int:
        """Changes of the version since the session's first call; 0 before it."""
        first = self._first.get(session_id)
        return 0 if first is None else self._updates - first.updates

    def versions_of(self, session_id: str) -> tuple[str, str]:
        """The version of the session's first call, and the current one."""
        first = self._first.get(session_id)
        return self.policy.version if first is None else first.version, self.policy.version

    def forget(self, session_id: str) -> None:
        """Called when the session has ended."""
        self._first.pop(session_id, None)

    async def _resumed(self) -> None:
        while self.policy.paused:  # a woken waiter may find generation paused again
            await self._open.wait()


class Versions:
    """Which policy version sampled which tokens of one reply. Spans from the engine are exact; a version that
    comes with whole pieces is believed only if there was no other."""

    def __init__(self) -> None:
        self.start = ""
        """The gate's version when the call started."""
        self.start_updates = 0
        """Changes of the version that the gate had seen by then."""
        self.updated_within = False
        """The gate's version changed before the call ended."""
        self._of_pieces: set[str] = set()
        self._spans: tuple[PolicySpan, ...] = ()
        self._size = 0

    def take(self, piece: Piece, count: int) -> None:
        self._size += count
        if count:
            self._of_pieces.add(piece.policy_version)
        if piece.policy_spans:
            # The engine's spans also cover tokens that were cut off.
            within = [span for span in piece.policy_spans if span.start < self._size]
            self._spans = tuple(
                PolicySpan(s.version, s.start, min(s.length, self._size - s.start)) for s in within
            )

    @property
    def first(self) -> str:
        if self._spans:
            return self._spans[0].version
        named = next(iter(self._of_pieces)) if len(self._of_pieces) == 1 else ""
        return named or self.start

    @property
    def spans(self) -> tuple[PolicySpan, ...]:
        """Empty where one version covers the reply."""
        return self._spans if len(self._spans) > 1 else ()

    @property
    def unknown(self) -> bool:
        """There was more than one version, and the engine does not say which token belongs to which."""
        if self._spans:
            return sum(span.length for span in self._spans) != self._size
        return self.updated_within or len(self._of_pieces) > 1
