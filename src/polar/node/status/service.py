"""The status of a node of a rollout server: what it counts, reads and checks, and the listener that says it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from polar.monitoring.loop_lag import watched_lag
from polar.monitoring.readiness import Readiness
from polar.node.observers import SessionObserver
from polar.node.status.checks import NodeChecks, ServerLink
from polar.node.status.counts import GatewayCounts
from polar.node.status.listener import status_listener
from polar.node.status.reading import NodeReading
from polar.node.wiring import Node


@asynccontextmanager
async def node_status(
    node: Node, server: ServerLink, observers: Sequence[SessionObserver]
) -> AsyncGenerator[Sequence[SessionObserver]]:
    """Yields `observers` and the one that counts. Without `[node] metrics_port` there is none, and no cost."""
    if node.config.node.metrics_port is None:
        yield observers
        return
    counts = GatewayCounts(lambda: node.gate.updates)
    readiness = Readiness(NodeChecks(node, server).checks())
    sources = (counts, NodeReading(node, server, counts), *observers)
    async with watched_lag(counts.meters), status_listener(node.config.node, sources, readiness):
        yield (counts, *observers)
