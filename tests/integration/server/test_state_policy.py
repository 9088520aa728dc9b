"""The policy in the database: what counts as an update, how far a pause has come, and rows of an older Polar."""

from __future__ import annotations

import json

import pytest
from desk import AS_IN_SCHEMA_4, LEASE_S, Clock, Desk, config_of
from sqlalchemy import create_engine, text

from polar.server.records import events, leases, nodes, policy
from polar.server.state import State
from polar.types import Drain, Heartbeat, Policy, PolicyChange


async def put(desk: Desk, **changes: object) -> Policy:
    return await desk.state.change(policy.put, PolicyChange.model_validate(changes))


async def tell(desk: Desk, node_id: str, generating: int, revision: int | None) -> None:
    beat = Heartbeat(generating=generating, revision=revision)
    await desk.state.change(leases.heartbeat, node_id, beat)


async def drain(desk: Desk) -> Drain:
    return await desk.state.read(policy.drain, desk.state.alive_since)


async def test_the_policy_is_kept_and_its_change_is_one_event(desk: Desk) -> None:
    assert await desk.state.read(policy.current) == Policy()
    wanted = Policy(version="step\0 12 雪", paused=True, updates=1, revision=1)
    for _ in range(2):
        assert await put(desk, version=wanted.version, paused=True) == wanted
        assert await desk.state.read(policy.current) == wanted
    [event] = await desk.state.read(events.after, 0)
    assert (event.kind, event.data) == ("policy", wanted.model_dump())


@pytest.mark.parametrize(
    ("changes", "updates", "revision"),
    [
        ([{"version": "1"}, {"version": "1"}], 1, 1),
        ([{"version": "1"}, {"version": "2"}, {"version": "1"}], 3, 3),
        ([{"paused": True}, {"version": "1"}, {"paused": False}], 1, 3),
        ([{"paused": False}, {}, {"version": ""}], 0, 0),
    ],
    ids=["the same again", "there and back", "around an update", "as it stood"],
)
async def test_what_counts_as_an_update(
    desk: Desk, changes: list[dict[str, object]], updates: int, revision: int
) -> None:
    for change in changes:
        await put(desk, **change)
    stands = await desk.state.read(policy.current)
    assert (stands.updates, stands.revision) == (updates, revision)
    assert len(await desk.state.read(events.after, 0)) == revision


async def test_a_pause_is_over_when_every_live_node_has_told_so(desk: Desk) -> None:
    one, other = await desk.register("one"), await desk.register("other")
    revision = (await put(desk, paused=True)).revision
    assert (await drain(desk)).unheard == tuple(sorted((one, other))), "they have told of nothing yet"
    await tell(desk, one, 2, revision - 1)
    await tell(desk, other, 0, revision)
    assert ((await drain(desk)).unheard, (await drain(desk)).generating) == ((one,), 2)
    await tell(desk, one, 1, revision)
    assert ((await drain(desk)).unheard, (await drain(desk)).done) == ((), False)
    await tell(desk, one, 0, revision)
    assert (await drain(desk)).done


async def test_an_earlier_pause_proves_nothing_of_a_later_one(desk: Desk) -> None:
    node = await desk.register()
    await tell(desk, node, 0, (await put(desk, paused=True)).revision)
    assert (await drain(desk)).done
    await put(desk, paused=False)
    assert not (await drain(desk)).done, "generation runs"
    await put(desk, paused=True)
    assert (await drain(desk)).unheard == (node,), "it may have begun something in between"


async def test_a_drain_does_not_wait_for_a_node_that_is_gone(desk: Desk) -> None:
    gone, left = await desk.register("gone"), await desk.register("left")
    await put(desk, paused=True)
    await tell(desk, gone, 3, 0)
    await desk.state.change(nodes.remove, left)
    desk.clock.advance(LEASE_S - 1)
    assert (await drain(desk)).unheard == (gone,), "it is late, and may come back with its leases"
    desk.clock.advance(1)
    assert (await drain(desk)).done


async def test_a_node_that_holds_sessions_is_waited_for_until_they_are_taken_back(desk: Desk) -> None:
    """As after a restart: the server has seen no node, and the leases are extended."""
    await desk.submit()
    node = await desk.register()
    await desk.lease_one(node)
    desk.clock.advance(LEASE_S * 10)
    await desk.state.change(leases.extend_all)
    await put(desk, paused=True)
    assert (await drain(desk)).unheard == (node,)
    desk.clock.advance(LEASE_S)
    assert await desk.expire() == 1
    assert (await drain(desk)).done


async def test_without_nodes_a_pause_is_over_at_once(desk: Desk) -> None:
    assert not (await drain(desk)).done
    await put(desk, paused=True)
    assert (await drain(desk)).done


async def test_the_listing_of_nodes_tells_it_too(desk: Desk) -> None:
    node = await desk.register()
    revision = (await put(desk, version="1")).revision
    [before] = await desk.state.read(nodes.listing, desk.state.alive_since)
    await tell(desk, node, 5, revision)
    [after] = await desk.state.read(nodes.listing, desk.state.alive_since)
    assert [(row.generating, row.heard) for row in (before, after)] == [(0, False), (5, True)]


async def test_a_database_of_schema_version_1_is_brought_up_to_date(database: str, clock: Clock) -> None:
    first = Desk(await State.open(config_of(database), clock), clock)
    node = await first.register()
    await put(first, version="7", paused=True)
    await first.state.close()
    engine = create_engine(database)
    with engine.begin() as connection:  # as it was then
        for column in ("generating", "heard_revision", "sick"):
            connection.execute(text(f"ALTER TABLE nodes DROP COLUMN {column}"))
        for statement in AS_IN_SCHEMA_4:
            connection.execute(text(statement))
        connection.execute(text("ALTER TABLE sessions DROP COLUMN earlier"))
        connection.execute(text("UPDATE polar_server SET version = 1"))
        body = json.dumps({"version": "7", "paused": True})
        connection.execute(text("UPDATE policy SET body = :body"), {"body": body})
    engine.dispose()
    for _ in range(2):
        again = Desk(await State.open(config_of(database), clock), clock)
        assert await again.state.read(policy.current) == Policy(version="7", paused=True)
        assert (await drain(again)).unheard == (node,)
        await again.state.close()
    last = Desk(await State.open(config_of(database), clock), clock)
    assert (await put(last, version="8")).updates == 1
    await last.state.close()
