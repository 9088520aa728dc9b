"""Who holds a session, until when, and what becomes of it when its node is silent; in both databases."""

from __future__ import annotations

import json

import pytest
from desk import LEASE_S, Desk

from node_abilities import able
from polar.server.errors import Conflict, Invalid, NotFound, Unauthorized
from polar.server.records import leases, nodes, policy
from polar.server.records.leases import MAX_REPLY_BYTES
from polar.types import HandBack, NodeDrain, PolicyChange, Registration, Stage


async def test_the_most_urgent_and_then_the_oldest_go_first(desk: Desk) -> None:
    await desk.submit("old", num_samples=2)
    await desk.submit("urgent", priority=5)
    await desk.submit("new")
    await desk.submit("idle", priority=-1)
    node = await desk.register()
    order = [lease.session.session_id for lease in await desk.lease(node, 10)]
    assert order == ["urgent-0", "old-0", "old-1", "new-0", "idle-0"]


async def test_a_node_gets_no_more_than_it_has_room_for(desk: Desk) -> None:
    await desk.submit(num_samples=5)
    one, other = await desk.register("one"), await desk.register("other")
    first, second = await desk.lease(one, 2), await desk.lease(other, 10)
    assert (len(first), len(second)) == (2, 3)
    assert await desk.lease(one, 1) == []
    assert {lease.session.session_id for lease in first + second} == {f"add-{n}" for n in range(5)}


async def test_a_draining_node_gets_nothing_until_that_is_undone(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    node, other = await desk.register("one"), await desk.register("other")
    await desk.state.change(nodes.set_draining, node, NodeDrain())
    assert await desk.lease(node, 5) == []
    assert len(await desk.lease(other, 1)) == 1
    await desk.state.change(nodes.set_draining, node, NodeDrain(draining=False))
    assert len(await desk.lease(node, 5)) == 1
    with pytest.raises(NotFound, match="no node 'node-0'"):
        await desk.state.change(nodes.set_draining, "node-0", NodeDrain())


async def test_a_lease_carries_the_task_and_the_session_as_it_stands(desk: Desk) -> None:
    await desk.submit(num_samples=2, metadata={"a": 1})
    node = await desk.register()
    [_, lease] = await desk.lease(node, 2)
    assert (lease.session.session_id, lease.session.index, lease.session.attempt) == ("add-1", 1, 1)
    assert (lease.session.stage, lease.session.node_id) == (Stage.QUEUED, node)
    assert lease.task.metadata == {"a": 1}


async def test_large_tasks_are_leased_a_few_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.submit(num_samples=5, instruction="x" * 10_000)
    node = await desk.register()
    assert MAX_REPLY_BYTES > 10 * 2**20
    monkeypatch.setattr(leases, "MAX_REPLY_BYTES", 25_000)
    assert [len(await desk.lease(node, 5)) for _ in range(4)] == [2, 2, 1, 0]
    monkeypatch.setattr(leases, "MAX_REPLY_BYTES", 10)
    await desk.submit("huge")
    assert len(await desk.lease(node, 5)) == 1


async def test_a_paused_policy_still_leases_and_the_node_learns_of_the_pause(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    await desk.state.change(policy.put, PolicyChange(version="7", paused=True))
    reply = await desk.state.change(leases.lease, node, 1)
    assert len(reply.leases) == 1
    assert (reply.policy.version, reply.policy.paused) == ("7", True)
    assert (await desk.beat(node)).policy == reply.policy


async def test_a_heartbeat_renews_and_moves_the_stage(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    lease = await desk.lease_one(node)
    for _ in range(5):
        desk.clock.advance(LEASE_S - 1)
        reply = await desk.beat(node, lease, stage=Stage.RUNNING)
        assert (reply.cancel, reply.lost) == ((), ())
        assert await desk.expire() == 0
    assert (await desk.row("add-0"))["stage"] == "RUNNING"
    stages = [json.loads(row["data"])["stage"] for row in await desk.rows("events") if row["kind"] == "stage"]
    assert stages == ["QUEUED", "RUNNING"]


@pytest.mark.parametrize("late", [Stage.INIT, Stage.RUNNING, Stage.COMPLETED, Stage.FAILED])
async def test_a_heartbeat_takes_no_stage_back_and_ends_nothing(desk: Desk, late: Stage) -> None:
    await desk.submit()
    node = await desk.register()
    lease = await desk.lease_one(node)
    await desk.beat(node, lease, stage=Stage.RUNNING)
    desk.clock.advance(1)
    await desk.beat(node, lease, stage=late)
    row = await desk.row("add-0")
    assert (row["stage"], row["lease_expires"]) == ("RUNNING", desk.clock.now + LEASE_S)


async def test_a_silent_session_returns_as_its_next_attempt(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    node, other = await desk.register(), await desk.register("other")
    silent, heard = await desk.lease(node, 2)
    await desk.beat(node, silent, stage=Stage.RUNNING)
    desk.clock.advance(LEASE_S - 1)
    await desk.beat(node, heard)
    desk.clock.advance(1)
    assert await desk.expire() == 1
    row = await desk.row("add-0")
    assert (row["stage"], row["attempt"], row["losses"], row["node_id"]) == ("QUEUED", 2, 1, None)
    again = await desk.lease_one(other)
    assert (again.session.session_id, again.session.attempt) == ("add-0", 2)
    assert (await desk.beat(node, silent, heard)).lost == ("add-0",)


async def test_a_heartbeat_in_time_saves_a_lease_that_was_not_collected(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    lease = await desk.lease_one(node)
    desk.clock.advance(LEASE_S * 3)
    assert (await desk.beat(node, lease)).lost == ()
    assert await desk.expire() == 0


async def test_what_was_never_the_nodes_is_lost_to_it(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    one, other = await desk.register("one"), await desk.register("other")
    ours, theirs = await desk.lease_one(one), await desk.lease_one(other)
    reply = await desk.beat(one, ours, theirs)
    assert (reply.lost, reply.cancel) == (("add-1",), ())
    future = ours.model_copy(update={"session": ours.session.model_copy(update={"attempt": 10**30})})
    assert (await desk.beat(one, future)).lost == ("add-0",)


async def test_an_old_attempt_is_not_called_lost_while_the_node_holds_the_newest(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    old = await desk.lease_one(node)
    desk.clock.advance(LEASE_S)
    await desk.expire()
    new = await desk.lease_one(node)
    assert (await desk.beat(node, old)).lost == ("add-0",)
    assert (await desk.beat(node, old, new)).lost == ()


async def test_a_session_whose_nodes_are_lost_too_often_is_given_up(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    limit = desk.state.config.max_attempts
    for attempt in range(1, limit + 1):
        lease = await desk.lease_one(node)
        assert lease.session.attempt == attempt
        await desk.beat(node, lease, stage=Stage.INIT)
        desk.clock.advance(LEASE_S)
        assert await desk.expire() == 1
    [entry] = (await desk.results()).results
    failure = entry.result.failure
    assert failure is not None
    assert (entry.result.stage, entry.result.attempt) == (Stage.FAILED, limit)
    assert (failure.where, failure.type, failure.agent) == ("node", "LostNode", False)
    assert f"{limit} attempts" in failure.message and "INIT" in failure.message
    assert await desk.lease(node) == []


async def test_handing_back_is_no_loss(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    rounds = desk.state.config.max_attempts + 5
    for _ in range(rounds):
        await desk.hand_back(node, await desk.lease_one(node))
    row = await desk.row("add-0")
    assert (row["stage"], row["attempt"], row["losses"]) == ("QUEUED", rounds + 1, 0)


async def test_only_what_is_held_can_be_handed_back(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    one, other = await desk.register("one"), await desk.register("other")
    lease = await desk.lease_one(one)
    with pytest.raises(Conflict):
        await desk.hand_back(other, lease)
    await desk.hand_back(one, lease)
    with pytest.raises(Conflict, match="attempt 1"):
        await desk.hand_back(one, lease)
    with pytest.raises(NotFound):
        await desk.state.change(leases.hand_back, one, HandBack(session_id="nobody", attempt=1))


async def test_a_session_that_ended_cannot_be_handed_back(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    lease = await desk.lease_one(node)
    await desk.report(node, lease)
    with pytest.raises(Conflict):
        await desk.hand_back(node, lease)


async def test_a_node_that_leaves_gives_all_back_at_once(desk: Desk) -> None:
    await desk.submit(num_samples=3)
    node, other = await desk.register("one"), await desk.register("other")
    await desk.lease(node, 2)
    await desk.state.change(leases.leave, node)
    await desk.state.change(nodes.remove, node)
    assert [(lease.session.session_id, lease.session.attempt) for lease in await desk.lease(other, 9)] == [
        ("add-0", 2),
        ("add-1", 2),
        ("add-2", 1),
    ]


async def test_a_node_that_left_leases_nothing(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    await desk.state.change(nodes.remove, node)
    with pytest.raises(Unauthorized):
        await desk.lease(node)
    with pytest.raises(Unauthorized):
        await desk.beat(node)
    assert (await desk.row("add-0"))["lease_expires"] is None


async def test_after_a_time_of_deafness_every_node_gets_a_full_lease(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    node = await desk.register()
    await desk.lease(node, 1)
    desk.clock.advance(LEASE_S * 10)
    await desk.state.change(leases.extend_all)
    assert await desk.expire() == 0
    assert (await desk.row("add-1"))["lease_expires"] is None
    desk.clock.advance(LEASE_S)
    assert await desk.expire() == 1


async def test_a_lease_from_a_clock_that_was_ahead_is_not_stranded(desk: Desk) -> None:
    """The clock was set back while no server ran."""
    await desk.submit()
    await desk.lease(await desk.register(), 1)
    desk.clock.advance(-LEASE_S * 100)
    await desk.state.change(leases.extend_all)
    desk.clock.advance(LEASE_S)
    assert await desk.expire() == 1


async def test_nodes_are_listed_with_what_they_hold(desk: Desk) -> None:
    await desk.submit(num_samples=2)
    one = await desk.register("one", slots=2)
    desk.clock.advance(LEASE_S)
    other = await desk.register("other")
    await desk.lease(other, 2)
    listed = await desk.state.read(nodes.listing, desk.state.alive_since)
    assert [(n.node_id, n.name, n.slots, n.alive, n.sessions) for n in listed] == [
        (one, "one", 2, False, ()),
        (other, "other", 4, True, ("add-0", "add-1")),
    ]


async def test_nodes_without_a_heartbeat_for_a_day_are_forgotten(desk: Desk) -> None:
    gone = await desk.register("gone")
    desk.clock.advance(nodes.FORGOTTEN_AFTER_S - 1)
    here = await desk.register("here")
    await desk.state.change(nodes.forget)
    assert len(await desk.rows("nodes")) == 2
    desk.clock.advance(2)
    await desk.state.change(nodes.forget)
    assert [row["node_id"] for row in await desk.rows("nodes")] == [here]
    assert (await desk.rows("events"))[-1]["node_id"] == gone


async def test_keys_are_kept_as_digests_only(desk: Desk) -> None:
    credentials = await desk.state.change(nodes.register, Registration(name="one", slots=1, abilities=able()))
    [row] = await desk.rows("nodes")
    assert credentials.key not in json.dumps(row)
    assert row["key_sha256"] == nodes.sha256(credentials.key)
    assert credentials.key not in json.dumps(await desk.rows("events"))


@pytest.mark.parametrize(("name", "slots"), [("a\0b", 1), ("a\nb", 1), ("fine", 2**40)])
async def test_a_registration_no_database_can_hold_is_refused(desk: Desk, name: str, slots: int) -> None:
    with pytest.raises(Invalid):
        await desk.register(name, slots)
