"""A node that works for a rollout server until it is told to stop."""

from __future__ import annotations

import asyncio

from polar.node.server_source import Controls, ServerSource
from polar.node.uplink import Uplink
from polar.node.wiring import NAME, Node
from polar.types import Registration


async def serve_server(node: Node, uplink: Uplink, stop: asyncio.Event) -> None:
    """Runs what the server leases. After `stop` it hands back what runs, uploads what is done, and leaves."""
    source = ServerSource(uplink, Registration(name=NAME, slots=node.config.pools.running))
    pipeline = node.pipeline(source, (source,))
    source.attach(
        Controls(
            cancel=pipeline.cancel,
            set_policy=node.gate.set,
            generating=lambda: node.gate.under_way,
            calls=node.journal.calls,
            sickness=lambda: node.health.sick,
        )
    )
    beside = [asyncio.create_task(source.beat()), asyncio.create_task(_stop_when(stop, source))]
    try:
        await pipeline.serve()
        await source.leave()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _stop_when(stop: asyncio.Event, source: ServerSource) -> None:
    await stop.wait()
    source.stop()
