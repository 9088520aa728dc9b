"""Who gets which sequence."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from polar.engines.llamacpp.sequences import SequenceTable


async def use(table: SequenceTable, session_id: str) -> int:
    async with table.hold(session_id) as sequence:
        return sequence


async def test_a_session_comes_back_to_its_sequence() -> None:
    table = SequenceTable(3)
    first = {name: await use(table, name) for name in "abc"}
    assert sorted(first.values()) == [0, 1, 2]
    assert {name: await use(table, name) for name in "cab"} == first


async def test_a_newcomer_takes_the_least_recently_used() -> None:
    table = SequenceTable(2)
    a, b = await use(table, "a"), await use(table, "b")
    await use(table, "a")
    assert await use(table, "c") == b
    assert await use(table, "a") == a


async def test_two_calls_of_one_session_at_once_use_two_sequences() -> None:
    table = SequenceTable(2)
    async with table.hold("a") as main, table.hold("a") as branch:
        assert main != branch


async def test_a_busy_sequence_is_never_taken_over() -> None:
    table = SequenceTable(1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(table.hold("a"))
        waiting = asyncio.create_task(use(table, "b"))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting == 0


async def test_who_gives_up_waiting_takes_nothing() -> None:
    table = SequenceTable(1)
    async with table.hold("a"):
        waiting = asyncio.create_task(use(table, "b"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await use(table, "c") == 0
