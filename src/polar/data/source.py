"""A task file as the source of sessions, for a run without a rollout server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from polar.data.tasks import named
from polar.errors import PolarError
from polar.types import EarlierAttempt, Lease, Session, SessionResult, TaskRequest, Trajectory

OnResult = Callable[[SessionResult, Trajectory | None], Awaitable[None]]


class EarlierSessions(NamedTuple):
    """What a run that goes on has of its sessions already."""

    finished: frozenset[str] = frozenset()
    """Ids of sessions whose results stand: they do not run again."""
    attempts: Mapping[str, tuple[EarlierAttempt, ...]] = {}
    """Session id to its attempts without a result that stands, oldest first."""


class TaskFileSource:
    """A `SessionSource`: the sessions of its tasks in file order, the samples of a task together."""

    def __init__(
        self, tasks: Sequence[TaskRequest], on_result: OnResult, earlier: EarlierSessions | None = None
    ) -> None:
        known = earlier or EarlierSessions()
        self._queue = _leases(tasks, known)
        self._on_result = on_result
        self._leased: set[str] = set()
        self._outstanding = sum(task.num_samples for task in tasks) - len(known.finished)

    @property
    def outstanding(self) -> int:
        """Sessions without a result, leased or not."""
        return self._outstanding

    async def lease(self, room: int) -> list[Lease]:
        if room < 1:
            raise ValueError(f"room for {room} sessions: an empty answer would mean the end")
        leases = list(islice(self._queue, room))
        self._leased.update(lease.session.session_id for lease in leases)
        return leases

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        if result.session_id not in self._leased:  # any attempt: the node may have run it again
            raise PolarError(f"session {result.session_id}, attempt {result.attempt}: this session is not leased")
        self._leased.remove(result.session_id)
        await self._on_result(result, trajectory)
        self._outstanding -= 1


def _leases(tasks: Sequence[TaskRequest], known: EarlierSessions) -> Iterator[Lease]:
    """Made on demand: a file may describe millions of sessions."""
    for position, unnamed in enumerate(tasks, start=1):
        task = named(unnamed, position)
        assert task.task_id is not None
        for index in range(task.num_samples):
            session_id = task.session_id(index)
            if session_id in known.finished:
                continue
            earlier = known.attempts.get(session_id, ())
            attempt = earlier[-1].attempt + 1 if earlier else 1
            session = Session(session_id=session_id, task_id=task.task_id, index=index, attempt=attempt)
            yield Lease(session=session, task=task, earlier=earlier)
