"""A node's health: which of its parts a failure puts under suspicion, and whether a probe confirms it.

Nothing is polled while sessions go well. A failure that may be the node's own doing makes it probe the part; where
the probe fails the node is sick: it runs nothing new, and probes with growing pauses until the part works again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from polar.config import NodeConfig
from polar.errors import DISK_FULL, NO_DESCRIPTORS
from polar.node.back_off import BackOff
from polar.types import Failure, NodePart, Sickness, TaskRequest

LOGGER = logging.getLogger("polar.node")

OF_THE_REQUEST = {"ContextOverflow", "SchemaRefused", "ConversationRefused"}
"""Engine failures that a request has brought about: the engine is well."""
OF_THE_NODE = {"engine", "files", "gateway", "init", "journal", "pipeline", "runtime", "store", "teardown"}
"""Places whose messages are the node's own words. Others repeat what a harness or a task's command printed."""
SIGNS: dict[str, NodePart] = {
    "Too many open files": "descriptors",
    "No space left on device": "disk",
    "Disk quota exceeded": "disk",
    "disk is full": "disk",  # as SQLite says it
}
TYPES: dict[str, NodePart] = {DISK_FULL: "disk", NO_DESCRIPTORS: "descriptors"}
PLACES: dict[str, NodePart] = {"journal": "disk", "store": "disk", "runtime": "runtime"}
LONGEST_PAUSE = 30
"""Times the first pause."""


class Suspicion(NamedTuple):
    part: NodePart
    subject: str = ""
    """Which one, where there are several: the runtime's name."""


Check = Callable[[str], Awaitable[None]]
"""Tries a part out, by its subject; raises where it does not work."""


def suspicion_of(failure: Failure | None, task: TaskRequest) -> Suspicion | None:
    """The part of the node that a session's failure may come from; None: the session itself, or its policy."""
    if failure is None or failure.agent:
        return None
    part: NodePart | None = TYPES.get(failure.type)
    if part is None and failure.where in OF_THE_NODE:
        part = next((part for sign, part in SIGNS.items() if sign in failure.message), None)
    if part is None and failure.where == "engine" and failure.type not in OF_THE_REQUEST:
        part = "engine"
    part = part or PLACES.get(failure.where)
    return None if part is None else Suspicion(part, task.runtime.name if part == "runtime" else "")


def may_be_cut_off(failure: Failure | None) -> bool:
    """Whether a harness may have ended in error because the gateway could not take its connection: without a
    descriptor for it the connection is reset, and nothing but the harness notices."""
    return failure is not None and failure.where == "harness"


@dataclass
class _Outage:
    suspicion: Suspicion
    sickness: Sickness
    began: float
    """On the monotonic clock."""


class NodeHealth:
    """Opened by `open_node`, closed with it."""

    def __init__(self, checks: Mapping[NodePart, Check], config: NodeConfig) -> None:
        self._checks = checks
        self._config = config
        self._outage: _Outage | None = None
        self._well = asyncio.Event()
        self._well.set()
        self._was_sick: dict[NodePart, float] = {}
        """When the last outage or shortage of each part was over, on the monotonic clock."""
        self._back_off = BackOff(config.probe_pause_s, config.probe_pause_s * LONGEST_PAUSE)
        self._examining = asyncio.Lock()
        self._recovery: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []

    @property
    def sick(self) -> Sickness | None:
        return None if self._outage is None else self._outage.sickness

    @property
    def sick_s(self) -> float:
        """How long the node has been sick; 0: it is well."""
        return 0.0 if self._outage is None else time.monotonic() - self._outage.began

    def watch(self, watcher: Callable[[], None]) -> None:
        """Called when the node falls sick."""
        self._watchers.append(watcher)

    async def until_well(self) -> None:
        await self._well.wait()

    def was_well_since(self, moment: float, part: NodePart | None = None) -> bool:
        """In all parts, or in one. `moment`: on the monotonic clock."""
        now_sick = self.sick is not None and part in (None, self.sick.part)
        ended = self._was_sick.values() if part is None else [self._was_sick.get(part, float("-inf"))]
        return not now_sick and all(at < moment for at in ended)

    def note_shortage(self, part: NodePart) -> None:
        """The part has come to its end for a moment. That does not make the node sick, but what failed since may
        have failed for it."""
        self._was_sick[part] = time.monotonic()

    async def examine(self, suspicion: Suspicion) -> bool:
        """Tries the suspected part out. False: the node is sick."""
        async with self._examining:
            if self._outage is None and (why := await self._problem(suspicion)):
                self._fall_sick(suspicion, why)
            return self._outage is None

    def confirm(self) -> None:
        """A session went well: the next outage is not the last one going on."""
        if self._outage is None:
            self._back_off.reset()

    async def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait([self._recovery])

    async def _problem(self, suspicion: Suspicion) -> str:
        """Why the part does not work; empty: it does."""
        limit_s = self._config.probe_s
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                await self._checks[suspicion.part](suspicion.subject)
        except Exception as error:  # a plug-in may fail its probe in any way
            if isinstance(error, TimeoutError) and deadline.expired():
                return f"it did not answer a probe within {limit_s:g} s"
            return str(error)[:1000] or type(error).__name__
        return ""

    def _fall_sick(self, suspicion: Suspicion, why: str) -> None:
        sickness = Sickness(part=suspicion.part, why=why, since=time.time())
        LOGGER.error("the node's %s has failed, so it takes no sessions for now: %s", suspicion.part, why)
        self._outage = _Outage(suspicion, sickness, time.monotonic())
        self._well.clear()
        self._recovery = asyncio.create_task(self._recover(suspicion))
        for watcher in self._watchers:
            watcher()

    async def _recover(self, suspicion: Suspicion) -> None:
        while True:
            await asyncio.sleep(self._back_off.next_s())
            why = await self._problem(suspicion)
            if not why:
                break
            LOGGER.info("the node's %s still fails: %s", suspicion.part, why)
        LOGGER.warning("the node's %s works again after %.0f s", suspicion.part, self.sick_s)
        self._outage = None
        self._was_sick[suspicion.part] = time.monotonic()
        self._well.set()
