"""What a node is doing at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from polar.monitoring.exposition import gauge
from polar.node.status.checks import ServerLink
from polar.node.status.counts import GatewayCounts
from polar.node.wiring import Node
from polar.types import Stage

PARTS = ("engine", "disk", "descriptors", "runtime")
STAGES = (Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN)


class NodeReading:
    """A source of metrics."""

    def __init__(self, node: Node, server: ServerLink, counts: GatewayCounts) -> None:
        self._node = node
        self._server = server
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        node, pools, stages = self._node, self._node.config.pools, self._counts.stages
        in_stage = {(stage.value,): float(stages[stage]) for stage in STAGES}
        yield gauge("polar_gateway_sessions", "Sessions at this node by stage.", in_stage, ["stage"])
        sizes = {"INIT": pools.init, "READY": pools.ready, "RUNNING": pools.running, "POSTRUN": pools.postrun}
        places = {(stage,): float(size) for stage, size in sizes.items()}
        yield gauge("polar_gateway_pool_size", "How many sessions may be in a stage at once.", places, ["stage"])
        yield gauge("polar_gateway_generations", "Generations under way.", node.gate.under_way)
        yield gauge("polar_gateway_paused", "1: generation is paused.", node.gate.policy.paused)
        sick = node.health.sick
        parts = {(part,): float(sick is not None and sick.part == part) for part in PARTS}
        yield gauge("polar_gateway_sick", "1: this part fails, and the node leases nothing.", parts, ["part"])
        yield gauge("polar_gateway_connected", "1: the rollout server answers.", not self._server.trouble)
        unsent = "Results that the rollout server has not accepted yet."
        yield gauge("polar_gateway_unsent_results", unsent, self._server.unsent)
