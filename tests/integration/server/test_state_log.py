"""The log that server and nodes share, and the counts of nodes, on SQLite and PostgreSQL."""

from __future__ import annotations

import logging

import pytest
from desk import Api, Clock, Desk, OpenServer, config_of

from polar.server.overview import log_lines
from polar.server.overview.snapshot import snapshot
from polar.server.records import leases
from polar.server.state import State
from polar.types import EngineUse, Heartbeat, LogLine, LogPage, Overview
from waiting import until


def line(message: str, session_id: str | None = None) -> LogLine:
    return LogLine(at=5.0, level="warning", message=message, session_id=session_id)


async def beat(desk: Desk, node: str, number: int, *messages: str) -> None:
    sent = Heartbeat(log=tuple(map(line, messages)), log_number=number)
    await desk.state.change(leases.heartbeat, node, sent)


async def log(desk: Desk, after: int = 0, session_id: str | None = None, limit: int = 100) -> LogPage:
    return await desk.state.read(log_lines.page, after, session_id, limit)


async def messages(desk: Desk) -> list[str]:
    return [each.message for each in (await log(desk)).lines]


async def test_the_lines_of_a_node_carry_its_name(desk: Desk) -> None:
    node = await desk.register("worker:7")
    await beat(desk, node, 0, "a", "b")
    page = await log(desk)
    assert [(each.source, each.message, each.at) for each in page.lines] == [
        ("worker:7", "a", 5.0),
        ("worker:7", "b", 5.0),
    ]
    assert (await log(desk, page.cursor)).lines == ()
    assert (await log(desk, page.cursor)).cursor == page.cursor


async def test_a_repeated_heartbeat_adds_no_line_twice(desk: Desk) -> None:
    node = await desk.register()
    await beat(desk, node, 0, "a", "b")
    await beat(desk, node, 0, "a", "b", "c")
    await beat(desk, node, 3, "d")
    await beat(desk, node, 3, "d")
    assert await messages(desk) == ["a", "b", "c", "d"]


async def test_lines_that_a_node_dropped_are_missed_visibly(desk: Desk) -> None:
    node = await desk.register()
    await beat(desk, node, 0, "a")
    await beat(desk, node, 5, "f")
    first, gap, last = await messages(desk)
    assert (first, last) == ("a", "f") and "4 lines of this node were dropped" in gap


async def test_a_node_that_registers_again_goes_on_counting(desk: Desk) -> None:
    await beat(desk, await desk.register(), 70, "a")
    assert await messages(desk) == ["a"]


async def test_the_log_is_bounded_and_a_page_has_the_newest(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "KEPT", 3)
    node = await desk.register()
    await beat(desk, node, 0, *"abcde")
    assert await messages(desk) == ["c", "d", "e"]
    assert [each.message for each in (await log(desk, limit=2)).lines] == ["d", "e"]


async def test_the_lines_of_one_session(desk: Desk) -> None:
    await desk.state.change(log_lines.add, [line("mine", "t-0"), line("other", "t-1"), line("none")], "server")
    assert [each.message for each in (await log(desk, session_id="t-0")).lines] == ["mine"]


async def test_a_line_that_a_database_refuses_costs_no_heartbeat(desk: Desk) -> None:
    node = await desk.register()
    await beat(desk, node, 2**31 - 1, "nul \0 here")
    assert await messages(desk) == ["nul \ufffd here"]


async def test_rates_survive_a_restart_of_the_server(database: str, clock: Clock) -> None:
    first = Desk(await State.open(config_of(database), clock), clock)
    node = await first.register()
    for calls in range(4):
        use = EngineUse(calls=calls, sampled_calls=calls, sampled_tokens=100 * calls, first_token_s=0.5 * calls)
        await first.state.change(leases.heartbeat, node, Heartbeat(use=use))
        clock.advance(10)
    await first.state.close()
    second = Desk(await State.open(config_of(database), clock), clock)
    found: Overview = await second.state.read(snapshot, clock(), second.state.alive_since)
    assert (found.rate.over_s, found.rate.calls_per_s) == (30.0, 0.1)
    assert (found.rate.sampled_tokens_per_s, found.rate.first_token_s) == (10.0, 0.5)
    clock.advance(1000)
    gone: Overview = await second.state.read(snapshot, clock(), second.state.alive_since)
    assert gone.rate.over_s == 0.0, "the node is not alive"
    await second.state.close()


async def test_the_server_adds_its_own_warnings(open_server: OpenServer) -> None:
    api: Api = await open_server()
    logging.getLogger("polar.server").error("it broke", extra={"session_id": "t-0"})
    logging.getLogger("polar.node").error("of a node in this process")

    async def lines() -> tuple[LogLine, ...]:
        return LogPage.model_validate(await api.get("/v1/overview/log")).lines

    [found] = await until(lines)
    assert (found.source, found.level, found.message, found.session_id) == ("server", "error", "it broke", "t-0")
