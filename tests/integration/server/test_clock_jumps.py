"""The clock of the server's machine is set, by hours and both ways: no session runs twice, none is stranded."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import pytest
from desk import LEASE_S, Clock, Desk, config_of

from pg_cluster import Postgres
from polar.server.clock import ServiceClock
from polar.server.records import leases
from polar.server.serve import RolloutServer
from waiting import until

HOUR_S = 3600.0
BEAT_S = 0.05
SHORT_LEASE_S = 1.0
LONG_LEASE_S = 600.0


class SetClock(Clock):
    """A wall clock that a test sets; `steady` only goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.gone_s = 0.0

    def steady(self) -> float:
        return self.gone_s

    def go_on(self, seconds: float) -> None:
        self.gone_s += seconds
        self.advance(seconds)


@pytest.fixture
def wall() -> SetClock:
    return SetClock()


@pytest.fixture
async def served(database: str, wall: SetClock) -> AsyncGenerator[Desk]:
    """A server whose rounds of expiry are quick."""
    config = config_of(database, heartbeat_s=BEAT_S, lease_beats=SHORT_LEASE_S / BEAT_S)
    tokens = {"control_token": "control-secret", "node_token": "node-secret"}
    async with RolloutServer(config, **tokens, clock=wall, steady=wall.steady) as server:
        yield Desk(server.state, wall)


async def expiry_of(desk: Desk) -> float:
    return (await desk.row("add-0"))["lease_expires"]


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_held_session_stays_with_its_node(served: Desk, wall: SetClock, jump_s: float) -> None:
    await served.submit()
    node = await served.register()
    lease = await served.lease_one(node)
    before = await expiry_of(served)
    wall.advance(jump_s)

    async def noticed() -> bool:
        return await expiry_of(served) != before

    await until(noticed)
    row = await served.row("add-0")
    assert (row["node_id"], row["attempt"]) == (node, 1), "it was not taken from its node"
    assert row["lease_expires"] == wall() + SHORT_LEASE_S, "neither expired nor an hour too long"
    assert (await served.beat(node, lease)).lost == ()


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_lost_node_is_still_noticed_after_a_jump(served: Desk, wall: SetClock, jump_s: float) -> None:
    await served.submit()
    await served.lease_one(await served.register())
    before = await expiry_of(served)
    wall.advance(jump_s)

    async def noticed() -> bool:
        return await expiry_of(served) != before

    await until(noticed)

    async def waits_again() -> bool:
        wall.go_on(BEAT_S / 2)  # the node stays silent while time passes as usual
        return (await served.row("add-0"))["attempt"] == 2

    await until(waits_again)


async def test_a_jump_moves_the_servers_time_only_when_it_is_noticed(served: Desk, wall: SetClock) -> None:
    """So no request in between sees leases that have expired because of it."""
    before = served.state.clock()
    clock = ServiceClock(wall(), wall.steady)
    wall.advance(HOUR_S)
    assert clock() == before
    assert clock.follow(wall()) == HOUR_S
    assert (clock(), clock.follow(wall())) == (wall(), 0)


def test_time_that_passes_is_no_jump() -> None:
    wall = SetClock()
    clock = ServiceClock(wall(), wall.steady)
    wall.go_on(LEASE_S * 100)
    assert (clock(), clock.follow(wall())) == (wall(), 0)


@pytest.mark.check
async def test_servers_on_machines_whose_clocks_differ_agree(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine's clock is an hour ahead: its server neither takes the other's sessions away, nor lets a lost
    node keep them for an hour."""
    config = config_of(postgres.new_database(), heartbeat_s=BEAT_S, lease_beats=LONG_LEASE_S / BEAT_S)
    tokens = {"control_token": "control-secret", "node_token": "node-secret"}
    async with RolloutServer(config, **tokens) as first:
        desk = Desk(first.state, Clock())
        await desk.submit()
        lease = await desk.lease_one(await desk.register())
        true_time = time.time
        monkeypatch.setattr(time, "time", lambda: true_time() + HOUR_S)
        async with RolloutServer(config, **tokens) as second:
            await second.state.change(leases.extend_all)
            assert await second.state.change(leases.expire) == 0
        row = await desk.row("add-0")
    assert (row["attempt"], row["node_id"]) == (1, lease.session.node_id)
    assert row["lease_expires"] < true_time() + LONG_LEASE_S * 2
