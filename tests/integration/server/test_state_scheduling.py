"""Which node gets which session: what nodes can, limits, turns. In both databases."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from desk import AS_IN_SCHEMA_7, LEASE_S, Clock, Desk, config_of
from queue_counts import check_counts
from sqlalchemy import create_engine, text

from node_abilities import able
from polar.server.errors import Conflict, UpgradeRequired
from polar.server.records import cancel, leases, nodes
from polar.server.scheduling.waiting import why_all_wait, why_task_waits
from polar.server.state import Change, State
from polar.types import PROTOCOL, Heartbeat, Lease, NodeStatus

SHELL = {"name": "shell", "options": {"command": "true"}}


def ids(found: list[Lease]) -> list[str]:
    return [lease.session.session_id for lease in found]


async def known(desk: Desk) -> list[NodeStatus]:
    return await desk.state.read(nodes.listing, desk.clock.now - LEASE_S)


async def why(desk: Desk, task_id: str) -> str:
    return await desk.state.read(why_task_waits, task_id, await known(desk))


async def test_a_node_gets_only_what_it_can_run(desk: Desk) -> None:
    await desk.submit("contained", runtime="docker", harness=SHELL)
    await desk.submit("labelled", harness=SHELL, needs={"labels": ["gpu"], "model": "big"})
    await desk.submit("plain", harness=SHELL)
    small = await desk.register("small", runtimes=("local",))
    assert ids(await desk.lease(small, 9)) == ["plain-0"]
    large = await desk.register("large", runtimes=("docker", "local"), labels=("gpu",), model="big")
    assert ids(await desk.lease(large, 9)) == ["contained-0", "labelled-0"]
    await check_counts(desk)


async def test_a_module_waits_for_a_node_that_allows_it(desk: Desk) -> None:
    await desk.submit("named", harness=SHELL, evaluator="my_grader:half")
    strict = await desk.register("strict")
    assert await desk.lease(strict, 9) == []
    assert await why(desk, "named") == (
        "no live node has the module my_grader in node.allowed_modules (1 node: none)"
    )
    allowing = await desk.register("allowing", modules=("my_grader",))
    assert ids(await desk.lease(allowing, 9)) == ["named-0"]


async def test_an_image_is_asked_for_where_the_node_lists_its_images(desk: Desk) -> None:
    runtime = {"name": "docker", "options": {"image": "tests:7"}}
    await desk.submit(harness=SHELL, runtime=runtime)
    without = await desk.register("without", images={"docker": ["other"]})
    assert await desk.lease(without, 9) == []
    assert await why(desk, "add") == "no live node has the image tests:7 for docker (1 node: other)"
    pulling = await desk.register("pulling")
    assert len(await desk.lease(pulling, 9)) == 1


async def test_a_heartbeat_tells_what_the_node_can_now(desk: Desk) -> None:
    await desk.submit(runtime="docker", harness=SHELL)
    node = await desk.register(runtimes=("local",))
    assert await desk.lease(node) == []
    woken = desk.state.signals["queue"].listen()
    await desk.state.change(leases.heartbeat, node, Heartbeat(abilities=able()))
    assert woken.is_set()
    assert (await known(desk))[0].abilities == able()
    await desk.state.change(leases.heartbeat, node, Heartbeat())
    assert len(await desk.lease(node)) == 1


async def test_a_node_of_another_protocol_is_refused_with_what_to_upgrade(desk: Desk) -> None:
    with pytest.raises(UpgradeRequired, match=f"protocol {PROTOCOL + 1}.*upgrade the server to the node's"):
        await desk.register(protocol=PROTOCOL + 1)
    with pytest.raises(UpgradeRequired, match=r"Polar 0\.0\.9 with protocol 1.*upgrade the node to the server's"):
        await desk.register(protocol=1, polar="0.0.9")
    assert await desk.rows("nodes") == []


async def test_a_later_small_task_does_not_wait_for_one_of_thousands(desk: Desk) -> None:
    await desk.submit("large", num_samples=1000)
    node = await desk.register()
    await desk.lease(node, 500)
    await desk.submit("small", num_samples=8)
    order = ids([lease for _ in range(24) for lease in await desk.lease(node)])
    assert sum(name.startswith("small") for name in order) == 8
    await check_counts(desk)


async def test_a_stream_of_later_tasks_does_not_keep_the_rest_of_an_older_one_waiting(desk: Desk) -> None:
    await desk.submit("old", num_samples=20)
    await desk.submit("next", num_samples=16)
    node = await desk.register()
    order: list[str] = []
    for number in range(6):  # as many come as go
        order += ids(await desk.lease(node, 8))
        await desk.submit(f"later{number}", num_samples=8)
    assert [name for name in order if name.startswith("old")] == [f"old-{number:02}" for number in range(20)]


async def test_a_session_that_comes_back_does_not_wait_for_a_later_task_of_thousands(desk: Desk) -> None:
    await desk.submit("old", num_samples=160)
    node = await desk.register()
    first, *_ = await desk.lease(node, 160)
    await desk.submit("new", num_samples=1000)
    await desk.hand_back(node, first)
    assert ids(await desk.lease(node)) == ["old-000"]
    assert set(name[:3] for name in ids(await desk.lease(node, 40))) == {"new"}


async def test_a_task_that_no_node_can_run_does_not_change_the_turns_of_others(desk: Desk) -> None:
    await desk.submit("nobody", needs={"labels": ["gpu"]})
    await desk.submit("old", num_samples=400)
    node = await desk.register()
    await desk.lease(node, 160)
    await desk.submit("new", num_samples=400)
    order = ids([lease for _ in range(4) for lease in await desk.lease(node, 16)])
    assert Counter(name[:3] for name in order) == {"old": 32, "new": 32}
    labelled = await desk.register("labelled", labels=("gpu",))
    assert ids(await desk.lease(labelled)) == ["nobody-0"]


async def test_groups_of_usual_size_are_leased_one_after_the_other(desk: Desk) -> None:
    for name in "abc":
        await desk.submit(name, num_samples=8)
    node = await desk.register()
    order = ids([lease for _ in range(4) for lease in await desk.lease(node, 6)])
    assert order == [f"{name}-{number}" for name in "abc" for number in range(8)]


async def test_priority_comes_before_turns(desk: Desk) -> None:
    await desk.submit("large", num_samples=40)
    node = await desk.register()
    await desk.lease(node, 20)
    await desk.submit("urgent", num_samples=40, priority=1)
    assert set(ids(await desk.lease(node, 40))) == {f"urgent-{number:02}" for number in range(40)}


async def test_a_task_may_limit_how_many_of_it_run(desk: Desk) -> None:
    await desk.submit(num_samples=5, max_running=2)
    node = await desk.register(slots=9)
    first, second = await desk.lease(node, 9)
    assert await desk.lease(node, 9) == []
    assert await why(desk, "add") == "the task's limit max_running = 2 is reached"
    woken = desk.state.signals["queue"].listen()
    await desk.report(node, first)
    assert woken.is_set(), "a node that waits for a session looks again"
    assert len(await desk.lease(node, 9)) == 1
    await desk.hand_back(node, second)
    assert ids(await desk.lease(node, 9)) == ["add-1"]
    await check_counts(desk)


async def test_a_group_may_limit_how_many_of_all_its_tasks_run(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        await desk.submit(name, num_samples=3, group_id="g", group_max_running=4)
    await desk.submit("other", num_samples=2)
    node = await desk.register(slots=20)
    held = await desk.lease(node, 20)
    assert ids(held) == ["a-0", "a-1", "a-2", "b-0", "other-0", "other-1"]
    assert await why(desk, "c") == "the group's limit group_max_running = 4 is reached"
    woken = desk.state.signals["queue"].listen()
    await desk.report(node, held[0])
    assert woken.is_set()
    assert ids(await desk.lease(node, 20)) == ["b-1"]
    await check_counts(desk)


async def test_a_full_group_does_not_hide_the_tasks_behind_it(desk: Desk) -> None:
    """More tasks of the group than a node has room for are in front."""
    for number in range(12):
        await desk.submit(f"g{number:02}", group_id="g", group_max_running=1)
    await desk.submit("behind", num_samples=3)
    node = await desk.register()
    assert ids(await desk.lease(node, 3)) == ["g00-0", "behind-0", "behind-1"]


@pytest.mark.parametrize(
    "other", [{"group_max_running": 3}, {"group_max_running": 2, "enough": 1}, {}], ids=["limit", "enough", "none"]
)
async def test_tasks_of_a_group_agree_on_its_limits(desk: Desk, other: dict[str, Any]) -> None:
    await desk.submit("a", group_id="g", group_max_running=2)
    with pytest.raises(Conflict, match="give all tasks of a group the same"):
        await desk.submit("b", group_id="g", **other)
    assert [row["task_id"] for row in await desk.rows("queue")] == ["a"]


async def test_all_reasons_are_counted_for_the_overview(desk: Desk) -> None:
    await desk.submit("contained", runtime="docker", num_samples=3)
    await desk.submit("contained-too", runtime="docker", num_samples=2)
    await desk.submit("limited", num_samples=4, max_running=1)
    node = await desk.register(runtimes=("local",), slots=9)
    await desk.lease(node, 9)
    found = await desk.state.read(why_all_wait, await known(desk))
    assert [(each.sessions, each.task_id, each.why) for each in found] == [
        (5, "contained", "no live node has the runtime docker (1 node: local)"),
        (3, "limited", "the task's limit max_running = 1 is reached"),
    ]


async def test_a_database_of_version_7_gets_its_queue(database: str, clock: Clock) -> None:
    first = Desk(await State.open(config_of(database), clock), clock)
    node = await first.register()
    await first.submit("a", num_samples=3, group_id="g")
    await first.submit("b", runtime="docker", priority=2)
    await first.submit("done")
    held = await first.lease(node, 2)
    await first.state.change(cancel.cancel, "task", "done")
    before = {name: await first.rows(name) for name in ("queue", "needs", "groups")}
    await first.state.close()
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in (*AS_IN_SCHEMA_7, "UPDATE polar_server SET version = 7"):
            connection.execute(text(statement))
    engine.dispose()
    second = Desk(await State.open(config_of(database), clock), clock)
    migrated = {name: await second.rows(name) for name in before}
    assert without_turns(migrated["queue"]) == without_turns(before["queue"])
    assert sorted(migrated["groups"], key=str) == sorted(before["groups"], key=str)
    assert {row["body"]: row["waiting"] for row in migrated["needs"] if row["waiting"]} == {
        row["body"]: row["waiting"] for row in before["needs"] if row["waiting"]
    }
    await check_counts(second)
    with pytest.raises(UpgradeRequired, match="an older Polar with protocol 1"):
        await second.lease(node)
    assert (await second.beat(node, *held)).lost == ()
    await second.report(node, held[0])  # what it held, it may finish
    new = await second.register("new")
    assert ids(await second.lease(new, 9)) == ["a-1", "a-2"]
    await second.state.close()


def without_turns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = ("task_id", "number", "group_id", "priority", "max_running", "waiting", "running")
    return sorted(({name: row[name] for name in kept} for row in rows), key=str)


async def test_sqlite_finds_the_next_task_by_an_index(desk: Desk) -> None:
    if "sqlite" not in desk.state.config.database:
        return
    await desk.submit(num_samples=2)

    def plan(change: Change) -> str:
        return str(
            change.connection.exec_driver_sql(
                "EXPLAIN QUERY PLAN SELECT * FROM queue JOIN groups ON groups.group_id = queue.group_id"
                " WHERE waiting > 0 ORDER BY queue.priority DESC, queue.turn, queue.number LIMIT 5"
            ).all()
        )

    found = await desk.state.change(plan)
    assert "queue_next" in found and "TEMP B-TREE" not in found
