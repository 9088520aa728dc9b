"""Generation is paused, resumed, and stamped with its version."""

from __future__ import annotations

import asyncio

from polar.gateway.policy import PolicyGate
from polar.types import Policy


async def test_an_open_gate_gives_the_version() -> None:
    gate = PolicyGate()
    assert await gate.enter() == ""
    gate.set(Policy(version="v2"))
    assert await gate.enter() == "v2"


async def test_who_waits_goes_on_under_the_new_version() -> None:
    gate = PolicyGate()
    gate.set(Policy(version="v1", paused=True))
    waiting = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.set(Policy(version="v2"))
    assert await waiting == "v2"
