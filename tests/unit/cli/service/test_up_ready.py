"""When `polar up` is ready."""

from __future__ import annotations

import asyncio
from typing import Any

from polar.cli.service.up_tasks import nodes_are_ready
from polar.types import NodeStatus


def a_node(name: str, registered: float) -> NodeStatus:
    return NodeStatus(node_id=name, name=name, slots=1, registered=registered, last_seen=registered, alive=True)


class Nodes:
    """A server that has one node more each time it is asked."""

    def __init__(self, *registered: float) -> None:
        self.asked = 0
        self._nodes = [a_node(f"n{number}", at) for number, at in enumerate(registered)]

    async def nodes(self) -> list[NodeStatus]:
        self.asked += 1
        return self._nodes[: self.asked]


async def ready(client: Any, count: int, since: float, stop: asyncio.Event | None = None) -> bool:
    return await nodes_are_ready(client, count, stop or asyncio.Event(), since)


async def test_a_node_of_a_killed_service_does_not_count() -> None:
    client = Nodes(5.0, 11.0, 12.0)
    assert await ready(client, 2, since=10.0)
    assert client.asked == 3


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    stop.set()
    assert not await ready(Nodes(), 1, since=0.0, stop=stop)
