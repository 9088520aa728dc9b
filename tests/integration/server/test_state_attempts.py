"""Why a session was run again is kept with it, and what a node says of its health is there for all to see."""

from __future__ import annotations

from typing import Any

from desk import AS_IN_SCHEMA_4, Clock, Desk, config_of
from sqlalchemy import create_engine, text

from polar.server.records import leases, nodes
from polar.server.records.tables import SCHEMA_VERSION
from polar.server.state import State
from polar.types import EarlierAttempt, HandBack, Heartbeat, Lease, NodeStatus, Sickness, Stage

SICK = Sickness(part="engine", why="connection refused", since=12.5)


async def hand_back(desk: Desk, node_id: str, lease: Lease, **reason: Any) -> None:
    session = lease.session
    given = HandBack(session_id=session.session_id, attempt=session.attempt, **reason)
    await desk.state.change(leases.hand_back, node_id, given)


async def health_of(desk: Desk) -> list[Sickness | None]:
    found: list[NodeStatus] = await desk.state.read(nodes.listing, 0.0)
    return [node.sick for node in found]


async def test_a_lease_tells_the_attempts_before_it(desk: Desk) -> None:
    await desk.submit()
    one, two = await desk.register("one"), await desk.register("two")
    first = await desk.lease_one(one)
    assert first.earlier == ()
    await hand_back(desk, one, first, where="engine", why="connection refused")
    second = await desk.lease_one(two)
    await hand_back(desk, two, second, where="engine", why="cut off", counted=True)
    third = await desk.lease_one(one)
    assert third.session.attempt == 3
    assert third.earlier == (
        EarlierAttempt(attempt=1, node="one", where="engine", why="connection refused"),
        EarlierAttempt(attempt=2, node="two", where="engine", why="cut off", counted=True),
    )


async def test_a_node_that_stops_leaves_or_is_lost_is_a_reason_too(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    await desk.hand_back(node, await desk.lease_one(node))
    await desk.beat(node, await desk.lease_one(node), stage=Stage.RUNNING)
    desk.clock.now += 1000
    assert await desk.expire() == 1
    lease = await desk.lease_one(await desk.register("other"))
    assert [(a.where, a.why) for a in lease.earlier] == [
        ("node", "the node stopped, in QUEUED"),
        ("node", "its node was lost, in RUNNING"),
    ]


async def test_a_result_that_the_server_makes_has_them(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    await hand_back(desk, node, await desk.lease_one(node), where="disk", why="full")
    await desk.cancel_task("add")
    [entry] = (await desk.results()).results
    assert [(a.attempt, a.where, a.why) for a in entry.result.attempts] == [(1, "disk", "full")]


async def test_only_the_newest_attempts_are_kept(desk: Desk) -> None:
    await desk.submit()
    node = await desk.register()
    for _ in range(leases.KEPT_EARLIER + 3):
        await hand_back(desk, node, await desk.lease_one(node), where="disk", why="full")
    earlier = (await desk.lease_one(node)).earlier
    assert len(earlier) == leases.KEPT_EARLIER and earlier[-1].attempt == leases.KEPT_EARLIER + 3


async def test_a_sick_node_is_listed_with_its_reason_until_it_is_well(desk: Desk) -> None:
    node = await desk.register()
    await desk.state.change(leases.heartbeat, node, Heartbeat(sick=SICK))
    await desk.state.change(leases.heartbeat, node, Heartbeat(sick=SICK))
    assert await health_of(desk) == [SICK]
    await desk.state.change(leases.heartbeat, node, Heartbeat())
    assert await health_of(desk) == [None]
    told = [row["data"] for row in await desk.rows("events") if row["kind"] == "node"]
    assert [("sick" in one, "well" in one) for one in told[1:]] == [(True, False), (False, True)], told


async def test_a_database_of_version_3_is_brought_up_to_date(database: str, clock: Clock) -> None:
    first = Desk(await State.open(config_of(database), clock), clock)
    await first.submit(num_samples=2)
    await first.register()
    await first.state.close()
    engine = create_engine(database)
    with engine.begin() as connection:
        for statement in AS_IN_SCHEMA_4:
            connection.execute(text(statement))
        connection.execute(text("ALTER TABLE sessions DROP COLUMN earlier"))
        connection.execute(text("ALTER TABLE nodes DROP COLUMN sick"))
        connection.execute(text("UPDATE polar_server SET version = 3"))
    engine.dispose()
    second = Desk(await State.open(config_of(database), clock), clock)
    assert (await second.rows("polar_server"))[0]["version"] == SCHEMA_VERSION
    node = await second.register("two")
    lease = await second.lease_one(node)
    await hand_back(second, node, lease, where="disk", why="full")
    assert len((await second.lease_one(node)).earlier) == 1 and await health_of(second) == [None, None]
    await second.state.close()
