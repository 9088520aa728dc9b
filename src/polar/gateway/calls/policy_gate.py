"""Which policy generation runs under, whether it runs at all, and how far the policy has moved on since.

Around a weight update generation is paused: calls that arrive wait, their streams kept awake, and begin under the
new version. A call is stamped with the version under which it began. What is under way at a pause runs to its end,
and is counted, so that somebody can wait until nothing is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

from polar.gateway.calls.waits import CallWait
from polar.types import Policy


@dataclass(frozen=True)
class Began:
    """What a generation, or a session's first one, began under."""

    version: str
    updates: int
    """Changes of the version that the gate had seen by then."""


class PolicyGate:
    def __init__(self) -> None:
        self.policy = Policy()
        self.under_way = 0
        """Generations that have begun and not ended."""
        self._open = asyncio.Event()
        self._open.set()
        self._updates = 0
        self._first: dict[str, Began] = {}
        """What the first call of each session began under."""
        self._watchers: list[Callable[[], None]] = []

    def set(self, policy: Policy) -> None:
        known, self.policy = self.policy, policy
        (self._open.clear if policy.paused else self._open.set)()
        # Counted here as well: a policy of nobody's counting is an update too, and a server that begins to count
        # anew takes nothing back.
        updates = max(policy.updates - known.updates, int(policy.version != known.version))
        if updates > 0:
            self._updates += updates
            for watcher in self._watchers:
                watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Called after each change of the version."""
        self._watchers.append(watcher)

    @asynccontextmanager
    async def generating(self, session_id: str, wait: CallWait | None = None) -> AsyncGenerator[Began]:
        """Around one generation: waits while generation is paused, and gives what it begins under. `wait` is told
        of the pause."""
        if self.policy.paused:
            with wait.paused() if wait is not None else nullcontext():
                await self._opened()
        began = Began(self.policy.version, self._updates)
        self._first.setdefault(session_id, began)
        self.under_way += 1
        try:
            yield began
        finally:
            self.under_way -= 1

    def updated_since(self, began: Began) -> bool:
        return self._updates > began.updates

    def updates_of(self, session_id: str) -> int:
        """Changes of the version since the session's first call; none before it."""
        first = self._first.get(session_id)
        return 0 if first is None else self._updates - first.updates

    def versions_of(self, session_id: str) -> tuple[str, str]:
        """Of the session's first call, and now."""
        first = self._first.get(session_id)
        return self.policy.version if first is None else first.version, self.policy.version

    def forget(self, session_id: str) -> None:
        """The session makes no calls any more."""
        self._first.pop(session_id, None)

    async def _opened(self) -> None:
        # Who was woken may find the gate shut again.
        while self.policy.paused:
            await self._open.wait()
