"""A task file hands out its sessions in order, and takes one result for each."""

from __future__ import annotations

import pytest

from polar.data.source import TaskFileSource
from polar.errors import PolarError
from polar.session.base import SessionSource
from polar.types import Lease, SessionResult, Stage, TaskRequest, Trajectory

TASKS = [TaskRequest(task_id="a", instruction="x", num_samples=2), TaskRequest(instruction="y")]


class Results:
    def __init__(self) -> None:
        self.taken: list[tuple[str, Trajectory | None]] = []

    async def __call__(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self.taken.append((result.session_id, trajectory))


def result_of(lease: Lease) -> SessionResult:
    session = lease.session
    return SessionResult(
        session_id=session.session_id,
        task_id=session.task_id,
        index=session.index,
        attempt=session.attempt,
        stage=Stage.COMPLETED,
    )


async def test_sessions_come_in_file_order_until_there_are_none() -> None:
    source: SessionSource = TaskFileSource(TASKS, Results())
    assert [lease.session.session_id for lease in await source.lease(2)] == ["a-0", "a-1"]
    assert [lease.session.session_id for lease in await source.lease(2)] == ["task-0002-0"]
    assert await source.lease(2) == []


async def test_a_lease_carries_its_task_and_index() -> None:
    _, second = await TaskFileSource(TASKS, Results()).lease(2)
    assert (second.task, second.session.index, second.session.task_id) == (TASKS[0], 1, "a")
    assert second.session.stage is Stage.QUEUED


async def test_results_reach_the_callback_and_lower_the_count() -> None:
    results = Results()
    source = TaskFileSource(TASKS, results)
    assert source.outstanding == 3
    leases = await source.lease(3)
    trajectory = Trajectory(session_id="a-1", builder="b")
    await source.report(result_of(leases[1]), trajectory)
    await source.report(result_of(leases[0]), None)
    assert results.taken == [("a-1", trajectory), ("a-0", None)]
    assert source.outstanding == 1


async def test_a_second_result_is_refused() -> None:
    results = Results()
    source = TaskFileSource(TASKS, results)
    [lease] = await source.lease(1)
    await source.report(result_of(lease), None)
    with pytest.raises(PolarError, match="is not leased"):
        await source.report(result_of(lease), None)
    assert len(results.taken) == 1


async def test_a_result_that_cannot_be_stored_stays_outstanding() -> None:
    async def full_disk(result: SessionResult, trajectory: Trajectory | None) -> None:
        raise PolarError("the disk is full")

    source = TaskFileSource(TASKS, full_disk)
    [lease] = await source.lease(1)
    with pytest.raises(PolarError, match="disk is full"):
        await source.report(result_of(lease), None)
    assert source.outstanding == 3


async def test_no_room_is_not_the_end() -> None:
    with pytest.raises(ValueError, match="mean the end"):
        await TaskFileSource(TASKS, Results()).lease(0)
