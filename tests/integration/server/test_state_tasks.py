"""Tasks become sessions at once or not at all, in both databases."""

from __future__ import annotations

import json

import pytest
from desk import Desk, task_of

from polar.server.errors import Conflict, NotFound
from polar.server.records import sessions, tasks
from polar.types import Stage


async def test_a_task_becomes_its_sessions(desk: Desk) -> None:
    status = await desk.submit("add", num_samples=3, group_id="g")
    assert status.session_ids == ("add-0", "add-1", "add-2")
    assert (status.stages, status.done, status.group_id) == ({"QUEUED": 3}, False, "g")
    assert status.submitted == desk.clock.now
    assert await desk.state.read(tasks.status, "add") == status


async def test_session_ids_sort_by_index(desk: Desk) -> None:
    status = await desk.submit("many", num_samples=11)
    assert status.session_ids[0] == "many-00"
    assert list(status.session_ids) == sorted(status.session_ids)


async def test_a_known_id_is_refused_and_changes_nothing(desk: Desk) -> None:
    await desk.submit("add", num_samples=2)
    with pytest.raises(Conflict, match="'add'"):
        await desk.submit("add", num_samples=5)
    assert len(await desk.rows("sessions")) == 2
    assert len(await desk.rows("events")) == 1


async def test_a_task_without_an_id_gets_a_new_one() -> None:
    first, second = tasks.named(task_of(None)), tasks.named(task_of(None))
    assert first.task_id and second.task_id and first.task_id != second.task_id
    assert tasks.named(task_of("mine")).task_id == "mine"


async def test_the_newest_tasks_come_first_and_without_their_sessions(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        await desk.submit(name)
    newest = await desk.state.read(tasks.newest, 2)
    assert [status.task_id for status in newest] == ["c", "b"]
    assert all(status.session_ids == () for status in newest)
    assert all(status.stages == {"QUEUED": 1} for status in newest)


async def test_no_tasks_are_an_empty_list(desk: Desk) -> None:
    assert await desk.state.read(tasks.newest, 10) == []


async def test_unknown_names_are_named(desk: Desk) -> None:
    with pytest.raises(NotFound, match="task 'nobody'"):
        await desk.state.read(tasks.status, "nobody")
    with pytest.raises(NotFound, match="session 'nobody'"):
        await desk.state.read(sessions.status, "nobody")
    with pytest.raises(NotFound, match="session 'nobody'"):
        await desk.state.read(sessions.lease_of, "nobody")


async def test_any_text_of_a_task_comes_back_as_it_was(desk: Desk) -> None:
    metadata = {"nul": "\0", "sign": "雪", "deep": [[{"a": None}]], "number": 1e300}
    await desk.submit("odd", instruction="do\0it 雪", metadata=metadata, files={"a/ü.txt": "\r\n\t"})
    lease = await desk.state.read(sessions.lease_of, "odd-0")
    assert lease.task.instruction == "do\0it 雪"
    assert lease.task.metadata == metadata
    assert lease.task.files == {"a/ü.txt": "\r\n\t"}


async def test_sessions_are_listed_by_task_and_stage(desk: Desk) -> None:
    await desk.submit("a", num_samples=2)
    await desk.submit("b", num_samples=2)
    node = await desk.register()
    lease = await desk.lease_one(node)
    await desk.beat(node, lease, stage=Stage.INIT)
    every = await desk.state.read(sessions.listing, None, None, 100)
    assert [status.session_id for status in every] == ["a-0", "a-1", "b-0", "b-1"]
    assert [s.session_id for s in await desk.state.read(sessions.listing, "b", None, 1)] == ["b-0"]
    [running] = await desk.state.read(sessions.listing, None, Stage.INIT, 100)
    assert (running.session_id, running.node_id, running.attempt) == ("a-0", node, 1)


async def test_a_session_that_ended_shows_its_result(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    lease = await desk.lease_one(node)
    assert (await desk.state.read(sessions.status, "add-0")).result is None
    await desk.report(node, lease, score={"reward": 0.5})
    status = await desk.state.read(sessions.status, "add-0")
    assert status.result is not None and status.result.score is not None
    assert (status.stage, status.result.score.reward) == (Stage.COMPLETED, 0.5)
    assert (await desk.state.read(tasks.status, "add")).done


async def test_the_task_is_an_event(desk: Desk) -> None:
    await desk.submit("add", num_samples=2, group_id="g")
    [event] = await desk.rows("events")
    assert (event["kind"], event["task_id"], event["at"]) == ("task", "add", desk.clock.now)
    assert json.loads(event["data"]) == {"num_samples": 2, "group_id": "g"}
