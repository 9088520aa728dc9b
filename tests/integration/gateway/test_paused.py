"""A pause around a weight update: calls wait, their streams stay awake, and the new version is stamped."""

from __future__ import annotations

import asyncio
from typing import Any

from playbook import OpenGateway

from polar.types import Policy
from waiting import until

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


async def test_a_paused_call_waits_and_begins_under_the_new_version(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["One.", "Two."], heartbeat_s=0.02)
    client = gateway.client(await gateway.open())
    gateway.gate.set(Policy(version="v1"))
    await client.chat.completions.create(model="polar", messages=HELLO)
    gateway.gate.set(Policy(version="v1", paused=True))
    stream = await client.chat.completions.create(model="polar", messages=HELLO, stream=True)
    chunks = aiter(stream)
    for _ in range(3):
        await anext(chunks)  # the first event, then heartbeats
    assert len(gateway.engine.requests) == 1, "nothing is sampled while paused"
    gateway.gate.set(Policy(version="v2"))
    async for _ in chunks:
        pass
    assert [call.policy_version for call in await gateway.calls()] == ["v1", "v2"]


async def test_sealing_ends_a_call_that_waits(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["never"])
    slot = await gateway.open()
    gateway.gate.set(Policy(paused=True))
    pending = asyncio.create_task(gateway.post(slot, {"messages": HELLO}))
    await until(lambda: gateway.slots._by_session["s1"]._active)
    await gateway.slots.seal("s1")
    status, body, _ = await pending
    assert (status, body["error"]["code"]) == (400, "session_sealed")
    assert gateway.engine.requests == [] and await gateway.calls() == []
