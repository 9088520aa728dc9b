"""Sessions at a node without a harness, and what its journal holds of them."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from typing import Any, Self

from speakers import SPEAKERS, Speaker

from polar import registry
from polar.node import Node
from polar.types import Call, CallProfile, Lease, Session, Slot, TaskRequest, Trajectory

CONTEXT_TOKENS = 8192


class Visit:
    """One session: its slot, and its calls once the client has them."""

    def __init__(self, node: Node, lease: Lease, slot: Slot) -> None:
        self._node = node
        self._lease = lease
        self.slot = slot

    async def calls(self) -> list[Call]:
        calls = await self._journalled()
        while not all(call.received for call in calls):
            # The client holds the last byte a moment before the journal says that it does.
            await asyncio.sleep(0.01)
            calls = await self._journalled()
        for call in calls:
            assert len(call.completion_ids) == len(call.logprobs) > 0
            assert all(math.isfinite(value) and value <= 0 for value in call.logprobs)
            assert call.engine.startswith("embedded/")
        return calls

    async def _journalled(self) -> list[Call]:
        return await self._node.journal.calls(self._lease.session.session_id)

    async def built(self) -> Trajectory:
        """The session's trajectory, as its task wants it built."""
        builder = registry.make("builder", self._lease.task.builder)
        return builder.build(self._lease.session.session_id, await self.calls())


class Bench:
    def __init__(self, node: Node) -> None:
        self.node = node
        self._stack = AsyncExitStack()
        self._visits = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def visit(self, **sampling: Any) -> Visit:
        """A session of its own. Greedy unless it says otherwise, so that the model always says the same."""
        self._visits += 1
        task = {"instruction": "go", "sampling": {"temperature": 0.0, **sampling}}
        lease = Lease(
            session=Session(session_id=f"s{self._visits}", task_id="t", index=0),
            task=TaskRequest.model_validate(task),
        )
        await self.node.journal.add_session(lease)
        return Visit(self.node, lease, await self.node.slots.open(lease, CallProfile()))

    def speaker(self, dialect: str, slot: Slot, key: str = "") -> Speaker:
        """The dialect's official client at the slot, with its key or with another."""
        speaker = SPEAKERS[dialect](slot.base_url, key or slot.key)
        self._stack.push_async_callback(speaker.close)
        return speaker
