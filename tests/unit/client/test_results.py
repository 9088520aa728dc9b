"""Results and events, finite or endless, whatever happens to the connection."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from fake_rollout import FakeRollout

from polar.client import PolarClient, ServerError
from polar.types import Event, ResultEntry, TaskRequest


async def submit(client: PolarClient, task_id: str, samples: int = 2, group_id: str | None = None) -> None:
    await client.submit(TaskRequest(task_id=task_id, instruction="x", num_samples=samples, group_id=group_id))


def ids(entries: list[ResultEntry]) -> list[str]:
    return [entry.result.session_id for entry in entries]


async def test_results_are_given_while_others_still_run(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 3)
    seen: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(rollout.finish("a-2"))
        async for entry in client.results(task_ids=["a"]):
            seen.append(entry.result.session_id)
            if len(seen) < 3:
                group.create_task(rollout.finish(f"a-{2 - len(seen)}"))
    assert seen == ["a-2", "a-1", "a-0"]


async def test_several_tasks_end_with_the_last_of_them(client: PolarClient, rollout: FakeRollout) -> None:
    for task_id in ("a", "b", "other"):
        await submit(client, task_id)
    for session_id in ("other-0", "a-1", "b-0", "other-1", "b-1"):
        await rollout.finish(session_id)
    seen: list[str] = []
    async with asyncio.TaskGroup() as group:
        async for entry in client.results(task_ids=["a", "b", "a"]):
            seen.append(entry.result.session_id)
            if len(seen) == 3:
                group.create_task(rollout.finish("a-0"))
    assert seen == ["a-1", "b-0", "b-1", "a-0"]


async def test_what_is_done_already_is_told_at_once(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a")
    await rollout.finish("a-0")
    await rollout.finish("a-1")
    assert ids([entry async for entry in client.results(task_ids=("a",))]) == ["a-0", "a-1"]
    assert rollout.seen[1:] == ["POST /v1/results/query"]


async def test_no_tasks_have_no_results(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 1)
    await rollout.finish("a-0")
    assert [entry async for entry in client.results(task_ids=[])] == []


async def test_more_results_than_a_page_holds(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 250)
    for index in range(250):
        await rollout.finish(f"a-{index}")
    assert len({entry.cursor async for entry in client.results(task_ids=["a"])}) == 250


async def test_a_reader_goes_on_where_it_stopped(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 4)
    for index in range(4):
        await rollout.finish(f"a-{index}")
    async with aclosing(client.results(task_ids=["a"])) as results:
        first = [await anext(results), await anext(results)]
    rest = [entry async for entry in client.results(task_ids=["a"], after=first[-1].cursor)]
    assert ids(first + rest) == ["a-0", "a-1", "a-2", "a-3"]
    assert [entry async for entry in client.results(task_ids=["a"], after=rest[-1].cursor)] == []


async def test_a_group_ends_with_the_last_of_its_tasks(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 1, "pair")
    await submit(client, "b", 1, "pair")
    await submit(client, "other", 1)
    for session_id in ("a-0", "other-0", "b-0"):
        await rollout.finish(session_id)
    assert ids([entry async for entry in client.results(group_id="pair")]) == ["a-0", "b-0"]
    with pytest.raises(ServerError, match="no group 'nobody'"):
        await anext(client.results(group_id="nobody"))


async def test_an_unknown_task_is_refused_rather_than_waited_for(client: PolarClient) -> None:
    with pytest.raises(ServerError, match="no task 'nobody'"):
        await anext(client.results(task_ids=["nobody"]))


async def test_without_tasks_there_is_no_end(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 1)
    await rollout.finish("a-0")
    async with aclosing(client.results()) as results:
        assert (await anext(results)).result.task_id == "a"
        waiting = asyncio.ensure_future(anext(results))
        await submit(client, "later", 1)
        await rollout.finish("later-0")
        assert (await waiting).result.task_id == "later"


async def test_a_task_settled_without_results_is_not_waited_for_for_ever(
    client: PolarClient, rollout: FakeRollout
) -> None:
    await submit(client, "a", 1)
    waiting = asyncio.ensure_future(anext(client.results(task_ids=["a"]), None))
    await rollout.held()
    rollout.sessions.clear()
    await rollout.tell()  # the long poll ends with nothing
    assert await waiting is None


async def test_several_tasks_do_not_cost_the_whole_history(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "old", 3000)
    for index in range(3000):
        await rollout.finish(f"old-{index}")
    await submit(client, "a", 1)
    await submit(client, "b", 1)
    before = len(rollout.seen)
    await rollout.finish("b-0")
    waiting = asyncio.ensure_future(rest_of(client, ["a", "b"]))
    await rollout.held()
    await rollout.finish("a-0")
    assert ids(await waiting) == ["b-0", "a-0"]
    assert len(rollout.seen) - before <= 3


async def rest_of(client: PolarClient, task_ids: list[str]) -> list[ResultEntry]:
    return [entry async for entry in client.results(task_ids=task_ids)]


async def test_a_restart_in_the_middle_is_not_noticed(client: PolarClient, rollout: FakeRollout) -> None:
    await submit(client, "a", 3)
    await rollout.finish("a-0")
    seen: list[str] = []
    async for entry in client.results(task_ids=["a"]):
        seen.append(entry.result.session_id)
        if seen == ["a-0"]:
            await rollout.stop()
            await rollout.finish("a-1")
            rollout.faults = [503, "unanswered"]
            await rollout.start()
            await rollout.finish("a-2")
    assert seen == ["a-0", "a-1", "a-2"]


def event(cursor: int) -> Event:
    return Event(cursor=cursor, at=float(cursor), kind="stage", session_id="a-0", data={"text": "ö\n"})


async def test_events_are_told_once_each_over_broken_streams(client: PolarClient, rollout: FakeRollout) -> None:
    rollout.cut_events_after = 2
    await rollout.tell(*map(event, range(1, 8)))
    async with aclosing(client.events(after=1)) as events:
        assert [await anext(events) for _ in range(6)] == [event(cursor) for cursor in range(2, 8)]
    asked = [headers["Last-Event-ID"] for headers in rollout.headers]
    assert asked[:3] == ["1", "3", "5"]


async def test_events_go_on_after_a_restart(client: PolarClient, rollout: FakeRollout) -> None:
    await rollout.tell(event(1))
    async with aclosing(client.events()) as events:
        assert await anext(events) == event(1)
        waiting = asyncio.ensure_future(anext(events))
        await rollout.stop()
        await rollout.start()
        await rollout.tell(event(2))
        assert await waiting == event(2)


async def test_a_refused_stream_is_an_error(url: str) -> None:
    async with PolarClient(url, "wrong") as client:
        with pytest.raises(ServerError, match="wrong control token"):
            await anext(client.events())


async def test_an_event_nobody_understands_is_named(client: PolarClient, rollout: FakeRollout) -> None:
    await rollout.tell(event(1).model_copy(update={"kind": "surprise"}))
    with pytest.raises(ServerError, match="an unexpected answer"):
        await anext(client.events())
