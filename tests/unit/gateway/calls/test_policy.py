"""Generation is paused, resumed, counted, and stamped with its version; sessions grow old."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.gateway.calls.policy_gate import PolicyGate, PolicyStart
from polar.types import Policy
from waiting import hang_limit


async def began_at(gate: PolicyGate, session_id: str = "s") -> PolicyStart:
    """One generation, from its beginning to its end."""
    async with gate.generating(session_id) as began:
        return began


async def test_a_generation_knows_the_version_it_begins_under() -> None:
    gate = PolicyGate()
    assert (await began_at(gate)).version == ""
    gate.set(Policy(version="v2", updates=1))
    assert (await began_at(gate)).version == "v2"


async def test_who_waits_goes_on_under_the_new_version() -> None:
    gate = PolicyGate()
    gate.set(Policy(version="v1", paused=True, updates=1))
    waiting = asyncio.create_task(began_at(gate))
    await asyncio.sleep(0)
    assert not waiting.done() and gate.under_way == 0
    gate.set(Policy(version="v2", updates=2))
    assert (await waiting).version == "v2"
    assert gate.updates_of("s") == 0, "waiting at the gate does not age a session"


async def test_a_gate_that_shuts_again_at_once_lets_no_call_through() -> None:
    gate = PolicyGate()
    gate.set(Policy(paused=True))
    waiting = asyncio.create_task(began_at(gate))
    await asyncio.sleep(0)
    gate.set(Policy())
    gate.set(Policy(paused=True))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.set(Policy())
    await waiting


async def test_generations_are_counted_until_they_end_however_they_end() -> None:
    gate = PolicyGate()
    async with gate.generating("a"), gate.generating("b"):
        gate.set(Policy(paused=True))
        assert gate.under_way == 2, "a pause ends nothing"
    assert gate.under_way == 0
    gate.set(Policy())
    with suppress(ZeroDivisionError):
        async with gate.generating("a"):
            raise ZeroDivisionError
    assert gate.under_way == 0


async def test_a_call_that_is_broken_off_while_it_waits_was_never_under_way() -> None:
    gate = PolicyGate()
    gate.set(Policy(paused=True))
    waiting = asyncio.create_task(began_at(gate))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    gate.set(Policy(version="v1", updates=1))
    assert (gate.under_way, gate.updates_of("s")) == (0, 0)


async def test_an_update_within_a_generation_is_noted() -> None:
    gate = PolicyGate()
    async with gate.generating("s") as began:
        gate.set(Policy(paused=True))
        gate.set(Policy())
        assert not gate.updated_since(began), "a pause alone changes no weights"
        gate.set(Policy(version="v1"))
        assert gate.updated_since(began)
    async with gate.generating("s") as next_one:
        assert not gate.updated_since(next_one)


async def test_a_sessions_age_counts_from_its_first_call() -> None:
    gate = PolicyGate()
    gate.set(Policy(version="v1", updates=1))
    assert (gate.updates_of("s"), gate.versions_of("s")) == (0, ("v1", "v1")), "it has made no call"
    await began_at(gate)
    gate.set(Policy(version="v4", updates=4))
    await began_at(gate)
    assert (gate.updates_of("s"), gate.versions_of("s")) == (3, ("v1", "v4")), "also updates in between"
    gate.forget("s")
    gate.forget("s")
    assert gate.updates_of("s") == 0


@pytest.mark.parametrize(
    ("policies", "updates"),
    [
        ([Policy(version="a"), Policy(version="b"), Policy(version="b")], 2),
        ([Policy(version="a", updates=1), Policy(version="b", updates=2), Policy(version="a", updates=3)], 3),
        ([Policy(version="a", updates=1), Policy(version="a", updates=3)], 3),
        ([Policy(version="a", updates=7), Policy(version="x", updates=1), Policy(version="y", updates=2)], 9),
    ],
    ids=["not counted by the sender", "there and back", "there and back, unheard", "a server that counts anew"],
)
async def test_what_counts_as_an_update(policies: list[Policy], updates: int) -> None:
    gate = PolicyGate()
    await began_at(gate)
    for policy in policies:
        gate.set(policy)
    assert gate.updates_of("s") == updates


async def test_watchers_are_called_for_updates_alone() -> None:
    gate, told = PolicyGate(), list[str]()
    gate.watch(lambda: told.append(gate.policy.version))
    for policy in (
        Policy(paused=True),
        Policy(version="a", paused=True),
        Policy(version="a"),
        Policy(version="b"),
    ):
        gate.set(policy)
    assert told == ["a", "b"]


_STEPS = st.lists(st.sampled_from(["begin", "end", "pause", "resume", "update"]), max_size=40)


@settings(deadline=None)
@given(_STEPS)
def test_a_pause_always_drains_and_a_resume_always_lets_everybody_on(steps: list[str]) -> None:
    """Whatever the order: nothing begins while paused, the count is that of what runs, and no call hangs."""
    asyncio.run(_walk(steps))


class _Walk:
    def __init__(self) -> None:
        self.gate = PolicyGate()
        self.running: list[AsyncExitStack] = []
        self.waiting: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        self.waiting.append(asyncio.create_task(self._generate()))

    async def _generate(self) -> None:
        stack = AsyncExitStack()
        began = await stack.enter_async_context(self.gate.generating("s"))
        assert not self.gate.policy.paused and began.version == self.gate.policy.version
        self.running.append(stack)

    async def end(self) -> None:
        if self.running:
            await self.running.pop().aclose()

    async def pause(self) -> None:
        self.gate.set(self.gate.policy.model_copy(update={"paused": True}))

    async def resume(self) -> None:
        self.gate.set(self.gate.policy.model_copy(update={"paused": False}))

    async def update(self) -> None:
        updates = self.gate.policy.updates + 1
        self.gate.set(self.gate.policy.model_copy(update={"version": str(updates), "updates": updates}))


async def _walk(steps: list[str]) -> None:
    walk = _Walk()
    for step in steps:
        await getattr(walk, step)()
        for _ in range(3):
            await asyncio.sleep(0)
        assert walk.gate.under_way == len(walk.running)
    await walk.pause()
    while walk.running:
        await walk.end()
    assert walk.gate.under_way == 0, "what ran has ended, and nothing began"
    await walk.resume()
    async with hang_limit():
        await asyncio.gather(*walk.waiting)
    assert walk.gate.under_way == len(walk.running)
    while walk.running:
        await walk.end()
