"""A task file as the source of sessions, for a run without a rollout server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

from polar.data.tasks import named
from polar.errors import PolarError
from polar.types import Lease, Session, SessionResult, TaskRequest, Trajectory

OnResult = Callable[[SessionResult, Trajectory | None], Awaitable[None]]


class TaskFileSource:
    """A `SessionSource`: the sessions of its tasks in file order, the samples of a task together."""

    def __init__(self, tasks: Sequence[TaskRequest], on_result: OnResult) -> None:
        self._queue = _leases(tasks)
        self._on_result = on_result
        self._leased: set[str] = set()
        self._outstanding = sum(task.num_samples for task in tasks)

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


def _leases(tasks: Sequence[TaskRequest]) -> Iterator[Lease]:
    """Made on demand: a file may describe millions of sessions."""
    for position, unnamed in enumerate(tasks, start=1):
        task = named(unnamed, position)
        assert task.task_id is not None
        for index in range(task.num_samples):
            session = Session(session_id=task.session_id(index), task_id=task.task_id, index=index)
            yield Lease(session=session, task=task)
