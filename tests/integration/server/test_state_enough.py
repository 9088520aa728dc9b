"""A group stops when it has enough trainable sessions; in both databases."""

from __future__ import annotations

from typing import Any

from desk import LEASE_S, USABLE, Desk

from polar.server.records import results, tasks
from polar.server.state import Change
from polar.types import Failure, Lease, Score, SessionResult, Stage, TaskRequest

WHY = "its group has 2 trainable sessions; enough is 2"


async def ended(desk: Desk) -> dict[str, SessionResult]:
    return {entry.result.session_id: entry.result for entry in (await desk.results()).results}


async def reported(desk: Desk, node: str, *leases: Lease, **fields: Any) -> None:
    for lease in leases:
        await desk.report(node, lease, **(fields or USABLE))


async def test_with_enough_of_them_the_others_are_cancelled_with_the_reason(desk: Desk) -> None:
    await desk.submit("a", num_samples=6, enough=2)
    node = await desk.register()
    first, second, third = await desk.lease(node, 3)
    await reported(desk, node, first)
    assert list(await ended(desk)) == ["a-0"]
    await reported(desk, node, second)
    found = await ended(desk)
    assert sorted(found) == ["a-0", "a-1", "a-3", "a-4", "a-5"]
    assert {(found[name].stage, found[name].cancel_reason) for name in ("a-3", "a-4", "a-5")} == {
        (Stage.CANCELLED, WHY)
    }
    assert [result.trainable for result in found.values()] == [True, True, False, False, False]
    assert all(found[name].failure is None for name in found), "no one failed"
    reply = await desk.beat(node, third)
    assert (reply.cancel, reply.cancel_reasons) == (("a-2",), {"a-2": WHY})
    assert (await desk.groups()).groups == ()
    await reported(desk, node, third, stage=Stage.CANCELLED, cancel_reason=WHY)
    [group] = (await desk.groups()).groups
    assert [result.session_id for result in group.results] == [f"a-{number}" for number in range(6)]
    assert [result.trainable for result in group.results] == [True, True, False, False, False, False]
    assert await desk.rows("queue") == []


async def test_a_running_session_may_be_left_to_end(desk: Desk) -> None:
    await desk.submit("a", num_samples=4, enough=1, on_enough="queued")
    node = await desk.register()
    first, second = await desk.lease(node, 2)
    await reported(desk, node, first)
    assert sorted(await ended(desk)) == ["a-0", "a-2", "a-3"]
    assert (await desk.beat(node, second)).cancel == ()
    await reported(desk, node, second)
    [group] = (await desk.groups()).groups
    assert [result.trainable for result in group.results] == [True, True, False, False]


async def test_a_running_session_that_comes_back_to_a_full_group_is_not_run_again(desk: Desk) -> None:
    await desk.submit("a", num_samples=4, enough=1, on_enough="queued")
    node, other = await desk.register(), await desk.register("other")
    first, second = await desk.lease(node, 2)
    await desk.lease(other, 2)
    await reported(desk, node, first)
    await desk.hand_back(node, second)
    assert sorted(await ended(desk)) == ["a-0", "a-1"]
    desk.clock.advance(LEASE_S)
    await desk.expire()
    found = await ended(desk)
    assert {(found[f"a-{number}"].stage, found[f"a-{number}"].cancel_reason) for number in (1, 2, 3)} == {
        (Stage.CANCELLED, "its group has 1 trainable sessions; enough is 1")
    }
    assert len((await desk.groups()).groups) == 1 and await desk.rows("queue") == []


async def test_only_trainable_sessions_count(desk: Desk) -> None:
    await desk.submit("a", num_samples=5, enough=2)
    node = await desk.register()
    one, two, three, four = await desk.lease(node, 4)
    infrastructure = Failure(where="engine", type="EngineError", message="gone")
    await reported(desk, node, one, stage=Stage.FAILED, failure=infrastructure)
    await reported(desk, node, two, score=Score(reward=1.0))  # without a certificate
    await reported(desk, node, three)
    assert len(await ended(desk)) == 3
    agent = Failure(where="harness", type="Exit", message="1", agent=True)
    await reported(
        desk, node, four, **{**USABLE, "stage": Stage.FAILED, "failure": agent, "score": Score(reward=0.0)}
    )
    assert (await ended(desk))["a-4"].cancel_reason == WHY


async def test_all_tasks_of_a_group_count_and_end_together(desk: Desk) -> None:
    for name in "abc":
        await desk.submit(name, num_samples=2, group_id="g", enough=2)
    await desk.submit("other", num_samples=1)
    node = await desk.register()
    await reported(desk, node, *(await desk.lease(node, 2)))
    assert sorted(await ended(desk)) == ["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]
    assert [lease.session.session_id for lease in await desk.lease(node, 9)] == ["other-0"]
    [row] = [row for row in await desk.rows("groups") if row["group_id"] == "g"]
    assert (row["usable"], row["running"], row["unfinished"]) == (2, 0, 0)


async def test_a_task_for_a_group_that_has_enough_is_cancelled_at_once(desk: Desk) -> None:
    await desk.submit("a", group_id="g", enough=1)
    node = await desk.register()
    await reported(desk, node, await desk.lease_one(node))
    late = TaskRequest(task_id="b", instruction="x", group_id="g", enough=1, num_samples=2)

    def submit(change: Change) -> None:
        tasks.submit(change, late)
        results.stop_if_enough(change, "g")

    await desk.state.change(submit)
    assert {name: result.stage.value for name, result in (await ended(desk)).items()} == {
        "a-0": "COMPLETED",
        "b-0": "CANCELLED",
        "b-1": "CANCELLED",
    }


async def test_a_session_of_a_full_group_whose_node_is_lost_is_not_run_again(desk: Desk) -> None:
    await desk.submit("a", num_samples=2, enough=1)
    node, other = await desk.register(), await desk.register("other")
    first, _ = await desk.lease_one(node), await desk.lease_one(other)
    await reported(desk, node, first)
    desk.clock.advance(LEASE_S)
    await desk.expire()
    lost = (await ended(desk))["a-1"]
    assert (lost.stage, lost.cancel_reason) == (Stage.CANCELLED, "its group has 1 trainable sessions; enough is 1")
    assert len((await desk.groups()).groups) == 1


async def test_a_clients_cancel_keeps_its_own_reason(desk: Desk) -> None:
    await desk.submit("a", num_samples=3, enough=1)
    node = await desk.register()
    first, second = await desk.lease(node, 2)
    await desk.cancel_task("a")
    await reported(desk, node, first)
    assert (await desk.beat(node, second)).cancel_reasons == {}
    assert (await ended(desk))["a-2"].cancel_reason == ""
