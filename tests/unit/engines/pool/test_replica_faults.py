"""What an error of a replica means for it, and for the call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polar.engines.base import EngineInfo
from polar.engines.pool.replica import Member, Replica, ReplicaLost, fault_of
from polar.engines.remote.server import ServerRefused
from polar.errors import ChatRefused, ContextOverflow, EngineBusy, EngineDefect, EngineError, SchemaRefused

INFO = EngineInfo("stub", "m", 100, "raw", 1)


class StubEngine:
    def __init__(self) -> None:
        self.stopped = 0

    async def stop(self) -> None:
        self.stopped += 1

    def counters(self) -> dict[str, Any]:
        return {"calls": 2, "note": "not a number"}


def serving() -> tuple[Replica, Member]:
    replica = Replica("http://a", StubEngine)
    replica.member, replica.why_out = Member(StubEngine(), INFO), ""
    return replica, replica.member


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (EngineBusy("b", 1.0), "busy"),
        (ContextOverflow(9, 8), "request"),
        (SchemaRefused("s"), "request"),
        (ChatRefused("c"), "request"),
        (ServerRefused("r", 400, "bad"), "request"),
        (ServerRefused("r", 422, "bad"), "request"),
        (ServerRefused("r", 401, "key"), "strike"),
        (ServerRefused("r", 404, "gone"), "strike"),
        (ServerRefused("r", 500, "oops"), "strike"),
        (EngineDefect("d"), "strike"),
        (EngineError("no connection"), "lost"),
        (ReplicaLost("gone"), "lost"),
    ],
)
def test_whose_fault_it_is(error: EngineError, fault: str) -> None:
    assert fault_of(error) == fault


async def test_three_in_a_row_and_a_success_between_starts_again() -> None:
    replica, member = serving()
    for _ in range(2):
        replica.failed(member, ServerRefused("r", 500, "oops"))
    replica.succeeded()
    for _ in range(2):
        replica.failed(member, ServerRefused("r", 500, "oops"))
    assert replica.serving
    replica.failed(member, EngineDefect("no ids"))
    assert (replica.serving, replica.why_out, replica.losses) == (False, "no ids", 1)
    assert replica.suspected.is_set(), "its watch is woken"


async def test_busy_is_a_pause_even_if_the_server_says_none() -> None:
    replica, member = serving()
    replica.failed(member, EngineBusy("b", 0.0))
    assert replica.serving and 0 < replica.busy_s() <= 0.1
    replica.failed(member, EngineBusy("b", 60.0))
    assert 50 < replica.busy_s() <= 60


async def test_errors_of_an_engine_that_was_given_up_do_not_count() -> None:
    replica, member = serving()
    replica.member = Member(StubEngine(), INFO)
    replica.failed(member, EngineError("no connection"))
    assert replica.serving


async def test_an_engine_stops_with_its_last_call() -> None:
    replica, member = serving()
    member.enter()
    await replica.drop()
    assert (member.engine.stopped, replica.member) == (0, None)
    await member.leave()
    assert member.engine.stopped == 1
    assert replica.counters() == {"calls": 2}, "its counts stay"


async def test_a_call_that_waits_for_its_first_token_ends_with_the_engine() -> None:
    _, member = serving()

    async def nothing() -> Any:
        await asyncio.Event().wait()
        yield

    member.enter()
    waiting = asyncio.create_task(member.first(nothing()))
    await asyncio.sleep(0)
    await member.retire()
    with pytest.raises(ReplicaLost):
        await waiting
    assert not waiting.cancelled()


async def test_a_time_out_of_the_engine_itself_is_not_taken_for_that() -> None:
    _, member = serving()

    async def slow() -> Any:
        raise TimeoutError("its own")
        yield

    with pytest.raises(TimeoutError, match="its own"):
        await member.first(slow())
