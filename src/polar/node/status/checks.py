"""What a node must be able to do to be ready: sample, write to its disk, open files, reach its server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from polar.errors import PolarError
from polar.monitoring.readiness import Check
from polar.node.probes import SPARE_DESCRIPTORS, check_disk, check_engine, descriptors_are_short
from polar.node.wiring import Node
from polar.types import EndedCall, NodePart

PROVEN_S = 30.0
"""A call that was answered, or got a token, so recently shows that the engine samples: no probe is needed."""
PAUSED = "ok, not probed: generation is paused"


class ServerLink(Protocol):
    """The node's connection to its rollout server."""

    @property
    def trouble(self) -> str:
        """Why the server does not lease sessions to this node; empty: it can."""
        ...

    @property
    def unsent(self) -> int:
        """Results that the server has not accepted yet."""
        ...


class NodeChecks:
    def __init__(self, node: Node, server: ServerLink, now_s: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._server = server
        self._now_s = now_s
        self._answered_at = float("-inf")
        node.calls.watch(self._call_ended)

    def checks(self) -> Mapping[str, Check]:
        return {"engine": self.engine, "disk": self.disk, "descriptors": self.descriptors, "server": self.server}

    async def engine(self) -> str:
        """Samples a token, unless a session just did, also in a call that goes on: an engine that is full would
        let the probe wait."""
        self._refuse_if_sick("engine")
        if self._now_s() - max(self._answered_at, self._node.slots.last_token_s) < PROVEN_S:
            return ""
        if self._node.gate.policy.paused:
            return PAUSED
        await check_engine(self._node.engine, self._node.gate)
        return ""

    async def disk(self) -> str:
        self._refuse_if_sick("disk")
        await asyncio.to_thread(check_disk, self._node.paths.root, self._node.config.node.min_free_bytes)
        return ""

    async def descriptors(self) -> str:
        self._refuse_if_sick("descriptors")
        if descriptors_are_short():
            raise PolarError(f"fewer than {SPARE_DESCRIPTORS} file descriptors are left; raise `ulimit -n`")
        return ""

    async def server(self) -> str:
        if trouble := self._server.trouble:
            raise PolarError(trouble)
        return ""

    def _call_ended(self, call: EndedCall) -> None:
        if call.outcome == "answered":
            self._answered_at = self._now_s()
        elif call.outcome == "failed":
            self._answered_at = float("-inf")

    def _refuse_if_sick(self, part: NodePart) -> None:
        """What failed a session counts until its own probe has seen it work."""
        sick = self._node.health.sick
        if sick is not None and sick.part == part:
            raise PolarError(sick.why)
