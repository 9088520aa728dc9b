"""The overview, its lists and its groups tell what the database holds, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from desk import AS_IN_SCHEMA_6, LEASE_S, Clock, Desk, config_of
from sqlalchemy import Connection, create_engine, text

from polar.server.overview import group_list, session_list
from polar.server.overview.snapshot import snapshot
from polar.server.records import cancel, nodes
from polar.server.records.tables import SCHEMA_VERSION
from polar.server.state import State
from polar.types import (
    Failure,
    GroupListPage,
    NodeDrain,
    Overview,
    Score,
    SessionFilter,
    SessionListPage,
    SessionRowView,
    Stage,
)
from polar.types.trace import TrajectoryStatistics

WELL = {"score": Score(reward=1.0)}
WRONG = {"score": Score(reward=0.0)}
BY_AGENT = {
    "stage": Stage.FAILED,
    "score": Score(reward=0.0),
    "failure": Failure(where="harness", type="ExitCode", message="1", agent=True),
}
BY_ENGINE = {"stage": Stage.FAILED, "failure": Failure(where="engine", type="EngineError", message="away")}


async def overview(desk: Desk) -> Overview:
    return await desk.state.read(snapshot, desk.clock(), desk.state.alive_since)


async def listed(desk: Desk, before: int | None = None, limit: int = 100, **wanted: Any) -> SessionListPage:
    only = SessionFilter.model_validate(wanted)
    return await desk.state.read(session_list.page, only, before, limit)


async def ids(desk: Desk, **wanted: Any) -> list[str]:
    return [row.session_id for row in (await listed(desk, **wanted)).sessions]


async def grouped(desk: Desk, before: int | None = None, limit: int = 50) -> GroupListPage:
    return await desk.state.read(group_list.page, before, limit)


async def end(desk: Desk, node: str, **fields: Any) -> str:
    lease = await desk.lease_one(node)
    await desk.report(node, lease, **fields)
    return lease.session.session_id


async def assert_counts_are_right(desk: Desk) -> dict[str, int]:
    counted = Counter(row["stage"] for row in await desk.rows("sessions"))
    stages = (await overview(desk)).stages
    assert set(stages) == {stage.value for stage in Stage}
    assert {stage: count for stage, count in stages.items() if count} == counted
    return dict(counted)


async def test_a_service_without_sessions_has_an_overview(desk: Desk) -> None:
    found = await overview(desk)
    assert (found.at, found.cursor, found.window, found.slots, found.busy) == (desk.clock(), 0, 0, 0, 0)
    assert set(found.stages.values()) == {0}
    assert found.oldest_queued_s is found.ended_per_minute is None
    assert (await listed(desk)).sessions == (await grouped(desk)).groups == ()


async def test_stages_are_counted_whatever_happens_to_a_session(desk: Desk) -> None:
    await desk.submit(num_samples=6)
    node = await desk.register(slots=6)
    leases = await desk.lease(node, 5)
    assert await assert_counts_are_right(desk) == {"QUEUED": 6}
    await desk.beat(node, *leases, stage=Stage.INIT)
    await desk.beat(node, *leases[:3], stage=Stage.RUNNING)
    assert await assert_counts_are_right(desk) == {"QUEUED": 1, "INIT": 2, "RUNNING": 3}
    await desk.beat(node, leases[0], stage=Stage.INIT)  # overtaken by the one before
    await desk.report(node, leases[0], **WELL)
    await desk.hand_back(node, leases[1])
    assert await assert_counts_are_right(desk) == {"QUEUED": 2, "INIT": 2, "RUNNING": 1, "COMPLETED": 1}
    desk.clock.advance(LEASE_S + 1)
    await desk.expire()
    assert await assert_counts_are_right(desk) == {"QUEUED": 5, "COMPLETED": 1}
    await desk.cancel_task("add")
    assert await assert_counts_are_right(desk) == {"CANCELLED": 5, "COMPLETED": 1}


async def test_a_row_says_since_when_a_session_is_in_its_stage(desk: Desk) -> None:
    await desk.submit(harness="shell", runtime="bubblewrap")
    submitted = desk.clock()
    node = await desk.register()
    desk.clock.advance(5)
    lease = await desk.lease_one(node)

    async def row() -> SessionRowView:
        [found] = (await listed(desk)).sessions
        return found

    first = await row()
    assert (first.since, first.node_id, first.harness, first.runtime) == (submitted, node, "shell", "bubblewrap")
    assert (first.group_id, first.trainable, first.stage) == ("add", None, Stage.QUEUED)
    await desk.beat(node, lease, stage=Stage.INIT)
    entered = desk.clock()
    desk.clock.advance(5)
    await desk.beat(node, lease, stage=Stage.INIT)
    assert (await row()).since == entered
    await desk.report(node, lease, **BY_AGENT)
    last = await row()
    assert (last.since, last.stage, last.reward, last.trainable) == (desk.clock(), Stage.FAILED, 0.0, False)
    assert (last.failure_where, last.failure_type, last.failed_by_agent) == ("harness", "ExitCode", True)


async def test_the_newest_results_are_summed_up(desk: Desk) -> None:
    await desk.submit("a", num_samples=2, harness="shell")
    await desk.submit("b", num_samples=3, harness="other")
    node = await desk.register()
    merged = TrajectoryStatistics(calls=4, traces=1, sampled_tokens=50, append_only_pairs=3, merged_pairs=3)
    broken = TrajectoryStatistics(calls=2, traces=2, sampled_tokens=10, append_only_pairs=1)
    await end(desk, node, **WELL, statistics=merged, policy_updates=1)
    await end(desk, node, **WRONG, statistics=broken, stage_s={"RUNNING": 3.0})
    await end(desk, node, **BY_AGENT)
    await end(desk, node, **BY_ENGINE)
    last = await end(desk, node, **BY_ENGINE, stale=True)
    found = await overview(desk)
    assert found.window == 5
    assert found.ended_per_minute == 5.0
    by_name = {each.harness: each for each in found.harnesses}
    assert by_name["shell"].mean_reward == 0.5
    assert by_name["shell"].merge_rate == 0.75
    assert (by_name["shell"].sampled_tokens, by_name["shell"].calls_per_session) == (60, 3.0)
    assert (by_name["shell"].rows_per_session, by_name["shell"].run_s) == (1.5, 3.0)
    assert by_name["other"].sessions == 3
    engine, agent = found.failures
    assert (engine.type, engine.agent, engine.count, engine.session_id) == ("EngineError", False, 2, last)
    assert (agent.type, agent.agent, agent.count) == ("ExitCode", True, 1)
    assert found.untrainable == {"infrastructure": 1, "no_trainable_tokens": 3, "stale": 1}
    assert found.policy_updates == {0: 4, 1: 1}
    assert found.stale == 1
    assert (found.contrast.groups, found.contrast.without_contrast) == (2, 1)
    assert found.contrast.mean_spread == pytest.approx(0.25)
    assert found.cursor == max(event["cursor"] for event in await desk.rows("events"))


async def test_slots_and_busy_count_live_nodes_only(desk: Desk) -> None:
    await desk.submit(num_samples=3)
    gone, here, draining = (
        await desk.register("gone", 8),
        await desk.register("here", 2),
        await desk.register("d", 4),
    )
    lost = await desk.lease_one(gone)
    await desk.beat(gone, lost)
    desk.clock.advance(LEASE_S + 1)
    lease, ready = await desk.lease(here, 2)
    await desk.beat(here, lease)
    await desk.beat(here, lease, ready, stage=Stage.READY)
    await desk.beat(draining)
    await desk.state.change(nodes.set_draining, draining, NodeDrain())
    found = await overview(desk)
    assert (found.slots, found.busy) == (2, 1)
    assert {node.name: node.alive for node in found.nodes} == {"gone": False, "here": True, "d": True}


async def test_the_queue_is_as_old_as_its_first_session(desk: Desk) -> None:
    await desk.submit("old")
    desk.clock.advance(30)
    await desk.submit("new")
    desk.clock.advance(10)
    assert (await overview(desk)).oldest_queued_s == 40
    node = await desk.register()
    await desk.lease_one(node)
    assert (await overview(desk)).oldest_queued_s == 10


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, "f-0 e-0 d-0 c-0 b-0 a-0"),
        ({"open": True}, "f-0 e-0"),
        ({"open": False}, "d-0 c-0 b-0 a-0"),
        ({"stage": "QUEUED"}, "f-0"),
        ({"stage": "RUNNING"}, "e-0"),
        ({"stage": "COMPLETED"}, "b-0 a-0"),
        ({"harness": "other"}, "f-0 b-0"),
        ({"task_id": "c"}, "c-0"),
        ({"group_id": "g"}, "e-0 a-0"),
        ({"group_id": "b"}, "b-0"),
        ({"failed_by": "any"}, "d-0 c-0"),
        ({"failed_by": "agent"}, "c-0"),
        ({"failed_by": "infrastructure"}, "d-0"),
        ({"failure_type": "EngineError"}, "d-0"),
        ({"failure_type": "none\0such"}, ""),
        ({"untrainable": "infrastructure"}, "d-0"),
        ({"untrainable": "no_trainable_tokens"}, "c-0 b-0 a-0"),
        ({"untrainable": ""}, ""),
        ({"reward_at_least": 0.5}, "a-0"),
        ({"reward_at_most": 0.5}, "c-0 b-0"),
        ({"reward_at_least": 0, "harness": "other"}, "b-0"),
        ({"text": "C-"}, "c-0"),
        ({"text": "g"}, "e-0 a-0"),
        ({"text": "%"}, ""),
        ({"text": "\0"}, ""),
        ({"open": True, "failed_by": "any"}, ""),
        ({"stage": "COMPLETED", "open": True}, ""),
    ],
)
async def test_a_list_has_the_sessions_that_were_asked_for(
    desk: Desk, wanted: dict[str, Any], expected: str
) -> None:
    node = await desk.register()
    for task_id, more, ending in [
        ("a", {"group_id": "g"}, WELL),
        ("b", {"harness": "other"}, WRONG),
        ("c", {}, BY_AGENT),
        ("d", {}, BY_ENGINE),
    ]:
        await desk.submit(task_id, **more)
        await end(desk, node, **ending)
    await desk.submit("e", group_id="g")
    await desk.beat(node, await desk.lease_one(node))
    await desk.submit("f", harness="other")
    assert await ids(desk, **wanted) == expected.split()
    if not wanted:
        assert await ids(desk, node_id=node) == ["e-0", "d-0", "c-0", "b-0", "a-0"]
        assert await ids(desk, node_id="elsewhere") == []


async def test_pages_hold_each_session_once(desk: Desk) -> None:
    node = await desk.register()
    for number in range(3):
        await desk.submit(f"t{number}", num_samples=3)
        await end(desk, node, **WELL)
    seen: list[str] = []
    before: int | None = None
    while True:
        page = await listed(desk, before, limit=2)
        assert len(page.sessions) <= 2
        seen += [row.session_id for row in page.sessions]
        await desk.submit(f"later-{len(seen)}")  # does not disturb the pages that follow
        if page.before is None:
            break
        before = page.before
    assert seen == [f"t{task}-{index}" for task in (2, 1, 0) for index in (2, 1, 0)]


async def test_groups_show_their_rewards_and_whether_they_differ(desk: Desk) -> None:
    node = await desk.register()
    await desk.submit("mixed", num_samples=3)
    for ending in (WELL, WRONG, BY_ENGINE):
        await end(desk, node, **ending)
    await desk.submit("equal", num_samples=3)
    for ending in (WELL, WELL):
        await end(desk, node, **ending)
    equal, mixed = (await grouped(desk)).groups
    assert (equal.group_id, equal.sessions, equal.unfinished) == ("equal", 3, 1)
    assert (equal.rewards, equal.mean, equal.spread, equal.contrast) == ((1.0, 1.0), 1.0, 0.0, False)
    assert (mixed.rewards, mixed.mean, mixed.spread, mixed.contrast) == ((1.0, 0.0, None), 0.5, 0.5, True)
    first = await grouped(desk, limit=1)
    assert [group.group_id for group in first.groups] == ["equal"]
    second = await grouped(desk, before=first.before, limit=1)
    assert ([group.group_id for group in second.groups], second.before) == (["mixed"], None)


async def test_a_page_of_large_groups_ends_early(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_list, "MAX_SESSIONS", 5)
    for name in ("a", "b", "c"):
        await desk.submit(name, num_samples=3)
    first = await grouped(desk)
    assert [group.group_id for group in first.groups] == ["c"]
    second = await grouped(desk, before=first.before)
    assert [group.group_id for group in second.groups] == ["b"]


async def test_a_result_with_absurd_numbers_is_recorded(desk: Desk) -> None:
    """What a node reports beside the result must never keep the result out."""
    await desk.submit()
    node = await desk.register()
    failure = Failure(where="a\0b", type="x" * 5000, message="m", agent=True)
    await end(desk, node, failure=failure, statistics=TrajectoryStatistics(calls=2**70), policy_updates=2**70)
    [row] = (await listed(desk)).sessions
    assert row.failure_where == "a\ufffdb" and row.calls > 2**60


async def test_a_cancelled_session_has_an_outcome_and_the_time_of_the_request(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    node = await desk.register()
    lease = await desk.lease_one(node)
    await desk.state.change(cancel.cancel, "task", "add")
    asked = desk.clock()
    desk.clock.advance(5)
    await desk.state.change(cancel.cancel, "task", "add")
    assert (await desk.row(lease.session.session_id))["cancelled"] == asked
    [running, ended] = sorted((await listed(desk)).sessions, key=lambda row: row.stage.final)
    assert running.cancel_requested and running.trainable is None
    assert (ended.stage, ended.untrainable_reason) == (Stage.CANCELLED, "cancelled")


async def test_a_database_of_version_6_gets_its_outcomes(database: str, clock: Clock) -> None:
    first = Desk(await State.open(config_of(database), clock), clock)
    node = await first.register()
    await first.submit("a", num_samples=3, harness="shell", group_id="g", budgets={"run_s": 7})
    await first.submit("b", harness="other")
    await end(first, node, **WELL, statistics=TrajectoryStatistics(calls=4, append_only_pairs=2, merged_pairs=1))
    await end(first, node, **BY_AGENT)
    await first.beat(node, await first.lease_one(node))
    before, rows, view = await listed(first), await first.rows("groups"), await overview(first)
    await first.state.close()
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in (*AS_IN_SCHEMA_6, "UPDATE polar_server SET version = 6"):
            connection.execute(text(statement))
    engine.dispose()
    second = Desk(await State.open(config_of(database), clock), clock)
    [schema] = await second.rows("polar_server")
    assert schema["version"] == SCHEMA_VERSION
    assert sorted(await second.rows("groups"), key=str) == sorted(rows, key=str)
    untimed = tuple(row.model_copy(update={"since": None}) for row in before.sessions)
    assert (await listed(second)).sessions == untimed
    migrated = await overview(second)
    assert migrated.harnesses == view.harnesses
    assert migrated.failures == view.failures
    assert (migrated.stages, migrated.ended_per_minute) == (view.stages, None)
    assert migrated.oldest_queued_s == 0, "known from the task"
    assert '"run_s": 7' in (await second.rows("tasks"))[0]["budgets"]
    await end(second, await second.register("another"))
    assert (await overview(second)).window == 3
    await second.state.close()


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({"open": True}, "sessions_open_newest"),
        ({"stage": "RUNNING"}, "sessions_open_in_stage"),
        ({"stage": "COMPLETED"}, "outcomes_in_stage"),
        ({"open": True, "harness": "shell"}, "sessions_open_of_harness"),
        ({"open": False, "harness": "shell"}, "outcomes_of_harness"),
        ({"open": False, "node_id": "one"}, "outcomes_at_node"),
        ({"open": True, "node_id": "one"}, "sessions_of_node"),
        ({"failed_by": "any"}, "outcomes_failed"),
        ({"failed_by": "infrastructure"}, "outcomes_failed_by"),
        ({"failure_type": "EngineError"}, "outcomes_of_failure"),
        ({"untrainable": "stale"}, "outcomes_untrainable"),
        ({"open": False, "group_id": "g"}, "outcomes_of_group"),
        ({"open": False, "task_id": "t"}, "ix_sessions_task_id"),
        ({"stage": "COMPLETED", "harness": "shell", "text": "a"}, "outcomes_of_harness"),
    ],
)
async def test_a_filter_has_its_index(desk: Desk, wanted: dict[str, Any], index: str) -> None:
    def check_plan(connection: Connection) -> None:
        [query] = session_list.queries_of(connection, SessionFilter.model_validate(wanted), before=5)
        paged = session_list.one_page(query.rows, before=5, limit=50)
        compiled = paged.compile(connection, compile_kwargs={"literal_binds": True})
        if connection.dialect.name == "sqlite":
            found = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}").all())
            assert index in found and "SCAN sessions'" not in found and "SCAN outcomes'" not in found, found
            return
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # the tables are empty
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        found = str(connection.exec_driver_sql(f"EXPLAIN {compiled}").all())
        assert "Index" in found and "Seq Scan" not in found, found

    await desk.state.read(check_plan)
