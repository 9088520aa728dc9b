"""Groups are counted as their sessions come and end, in both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from desk import LEASE_S, Clock, Desk, config_of
from sqlalchemy import Connection, Engine, event

from polar.server.errors import NotFound
from polar.server.records import cancel, groups
from polar.server.state import State
from polar.types import Lease


async def finish(desk: Desk, node: str, *leases: Lease) -> None:
    for lease in leases:
        await desk.report(node, lease, score={"reward": 1.0})


def names(page: groups.GroupPage) -> list[str]:
    return [group.group_id for group in page.groups]


async def test_a_group_is_done_with_the_last_session_of_its_last_task(desk: Desk) -> None:
    await desk.submit("a", num_samples=2, group_id="g")
    await desk.submit("b", group_id="g")
    node = await desk.register()
    first, second, third = await desk.lease(node, room=3)
    await finish(desk, node, third, first)
    status = await desk.state.read(groups.status, "g")
    assert (status.task_ids, status.sessions, status.unfinished) == (("a", "b"), 3, 1)
    assert not status.done and status.cursor is None and names(await desk.groups()) == []
    await finish(desk, node, second)
    [group] = (await desk.groups()).groups
    assert [result.session_id for result in group.results] == ["a-0", "a-1", "b-0"]
    last = (await desk.results()).cursor
    assert group.cursor == last == (await desk.state.read(groups.status, "g")).cursor


async def test_a_task_without_a_group_is_one_of_its_own(desk: Desk) -> None:
    await desk.submit("alone")
    node = await desk.register()
    await finish(desk, node, await desk.lease_one(node))
    assert (
        names(await desk.groups(task_ids=["alone"])) == names(await desk.groups(group_ids=["alone"])) == ["alone"]
    )
    assert (await desk.state.read(groups.status, "alone")).task_ids == ("alone",)
    assert [entry.result.task_id for entry in (await desk.selected(group_ids=["alone"])).results] == ["alone"]


async def test_groups_come_in_the_order_of_completion_and_by_what_was_asked(desk: Desk) -> None:
    for name in "abcd":
        await desk.submit(name, group_id=f"group-{name}")
    node = await desk.register()
    a, b, c, d = await desk.lease(node, room=4)
    await finish(desk, node, c, a, d)
    page = await desk.groups()
    assert names(page) == ["group-c", "group-a", "group-d"] and not page.all_done
    assert names(await desk.groups(after=page.groups[0].cursor, limit=1)) == ["group-a"]
    some = await desk.groups(task_ids=["a"], group_ids=["group-c"])
    assert names(some) == ["group-c", "group-a"] and some.all_done
    assert not (await desk.groups(task_ids=["a", "b"])).all_done
    await finish(desk, node, b)
    assert names(await desk.groups(task_ids=["b"])) == ["group-b"]


async def test_nothing_chosen_is_done_and_unknown_names_are_refused(desk: Desk) -> None:
    await desk.submit("a")
    for page in (await desk.groups(task_ids=[]), await desk.groups(group_ids=[])):
        assert page.groups == () and page.all_done
    with pytest.raises(NotFound, match="no task 'nobody'"):
        await desk.groups(task_ids=["a", "nobody"])
    with pytest.raises(NotFound, match="no group 'nobody'"):
        await desk.groups(group_ids=["nobody"])
    with pytest.raises(NotFound, match="no group 'nobody'"):
        await desk.state.read(groups.status, "nobody")


async def test_a_group_that_gains_a_task_is_open_and_comes_again(desk: Desk) -> None:
    await desk.submit("a", group_id="g")
    node = await desk.register()
    await finish(desk, node, await desk.lease_one(node))
    [early] = (await desk.groups()).groups
    await desk.submit("b", group_id="g")
    assert names(await desk.groups()) == [] and not (await desk.groups(group_ids=["g"])).all_done
    await finish(desk, node, await desk.lease_one(node))
    [whole] = (await desk.groups(after=early.cursor)).groups
    assert [result.task_id for result in whole.results] == ["a", "b"] and whole.cursor > early.cursor


async def test_sessions_that_the_server_ends_count_too(desk: Desk) -> None:
    await desk.submit("a", num_samples=3, group_id="g")
    await desk.submit("b", num_samples=2)
    node = await desk.register()
    lease = await desk.lease_one(node)
    assert await desk.state.change(cancel.cancel, "group", "g") == 3
    assert await desk.state.change(cancel.cancel, "group", "b") == 2, "its own group"
    assert names(await desk.groups()) == ["b"]
    desk.clock.advance(LEASE_S)
    await desk.expire()
    assert names(await desk.groups()) == ["b", "g"]
    assert lease.session.task_id == "a"


async def test_a_repeated_result_is_not_counted_twice(desk: Desk) -> None:
    await desk.submit("a", num_samples=2)
    node = await desk.register()
    first, _ = await desk.lease(node, room=2)
    await finish(desk, node, first, first, first)
    assert (await desk.state.read(groups.status, "a")).unfinished == 1


async def test_results_of_several_tasks_and_groups(desk: Desk) -> None:
    for name, group_id in (("a", "g"), ("b", "g"), ("c", None), ("d", None)):
        await desk.submit(name, group_id=group_id)
    node = await desk.register()
    a, b, c, d = await desk.lease(node, room=4)
    await finish(desk, node, d, b, c)

    async def found(**wanted: object) -> tuple[list[str], bool]:
        page = await desk.selected(**wanted)
        return [entry.result.task_id for entry in page.results], page.all_done

    assert await found() == (["d", "b", "c"], False)
    assert await found(task_ids=["c", "d"]) == (["d", "c"], True)
    assert await found(task_ids=["c", "b"], group_ids=["g"]) == (["b", "c"], False)
    assert await found(task_ids=["d", "c"], limit=1) == (["d"], True)
    assert await found(task_ids=[]) == ([], True)
    await finish(desk, node, a)
    assert await found(group_ids=["g"]) == (["b", "a"], True)


async def test_the_cost_of_a_group_does_not_grow_with_other_tasks(tmp_path: Path, clock: Clock) -> None:
    """In SQLite; PostgreSQL plans by statistics and scans small tables. No statement walks through a table."""
    state = await State.open(config_of(f"sqlite:///{tmp_path / 'server.db'}"), clock)
    desk = Desk(state, clock)
    for name in "abc":
        await desk.submit(name, group_id="g")
    with explained(await state.read(lambda connection: connection.engine)) as plans:
        for wanted in ({"task_ids": ["a", "b"]}, {"group_ids": ["g"]}, {"after": 7}):
            await desk.groups(**wanted)
            await desk.selected(**wanted)
    await state.close()
    seen = "\n".join(plans)
    assert "SCAN results" not in seen and "SCAN sessions" not in seen and "SCAN groups" not in seen, seen
    for index in ("results_of_task (task_id=? AND cursor>?)", "results_of_group (group_id=? AND cursor>?)"):
        assert index in seen
    assert "sessions_open (task_id=?)" in seen


@contextmanager
def explained(engine: Engine) -> Iterator[list[str]]:
    """SQLite's plan of each query that runs within."""
    plans: list[str] = []

    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT"):
            plans.append(str(cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()))

    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", explain)
