"""The source of a generation's sessions: it gives out the next attempt of a task only while it is wanted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from polar.errors import PolarError
from polar.runs.generate.attempts import TaskAttempts
from polar.runs.generate.plan import Outcome
from polar.types import EarlierAttempt, Lease, SessionResult, Stage, Trajectory

OnOutcome = Callable[[SessionResult, Outcome], None]


class AttemptSource:
    """A `ReturningSource`. Every task gets its first session before any gets a second one."""

    patient = False

    def __init__(self, accounts: Sequence[TaskAttempts], on_outcome: OnOutcome) -> None:
        self.stopping = asyncio.Event()
        self._account_of = {account.task_id: account for account in accounts}
        self._on_outcome = on_outcome
        self._wanting = deque[TaskAttempts]()
        self._queued: set[str] = set()
        self._again: deque[Lease] = deque()
        self._leased: dict[str, Lease] = {}
        self._changed = asyncio.Event()
        for account in sorted(accounts, key=lambda account: account.begun):
            self._queue(account)

    async def lease(self, room: int) -> list[Lease]:
        """Waits while sessions are under way whose outcome decides if there will be more."""
        while True:
            if leases := self._next(room):
                self._leased.update({lease.session.session_id: lease for lease in leases})
                return leases
            if not self._leased:
                return []
            self._changed.clear()
            await self._changed.wait()

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        lease = self._take(result)
        account = self._account_of[result.task_id]
        outcome = account.end(result, lease)
        self._queue(account)
        self._changed.set()
        self._on_outcome(result, outcome)

    async def hand_back(self, result: SessionResult, ended: EarlierAttempt) -> None:
        lease = self._take(result)
        update = {"attempt": lease.session.attempt + 1, "stage": Stage.QUEUED}
        session = lease.session.model_copy(update=update)
        self._again.append(lease.model_copy(update={"session": session, "earlier": (*lease.earlier, ended)}))
        self._changed.set()

    def _take(self, result: SessionResult) -> Lease:
        if result.session_id not in self._leased:
            raise PolarError(f"session {result.session_id}, attempt {result.attempt}: this session is not leased")
        return self._leased.pop(result.session_id)

    def _queue(self, account: TaskAttempts) -> None:
        if account.wants_more and account.task_id not in self._queued:
            self._queued.add(account.task_id)
            self._wanting.append(account)

    def _next(self, room: int) -> list[Lease]:
        leases = [self._again.popleft() for _ in range(min(room, len(self._again)))]
        while self._wanting and len(leases) < room:
            account = self._wanting.popleft()
            self._queued.remove(account.task_id)
            if account.wants_more:
                leases.append(account.next())
                self._queue(account)
        return leases
