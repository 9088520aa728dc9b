"""A node's health: which part a session's failure may come from, and whether that part works.

Nothing is polled while sessions succeed. After a failure that the node may have caused, it probes the suspected
part. If the probe fails, the node is sick: it starts nothing new, and probes with growing pauses until the part
works again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from polar.back_off import BackOff
from polar.config import NodeConfig
from polar.errors import DISK_FULL, NO_DESCRIPTORS
from polar.types import Failure, NodePart, Sickness, TaskRequest

LOGGER = logging.getLogger("polar.node")

REQUEST_FAILURES = {"ContextOverflow", "SchemaRefused", "ChatRefused"}
"""Engine failures caused by the request: the engine is well."""
NODE_PLACES = {"engine", "files", "gateway", "init", "journal", "pipeline", "runtime", "store", "teardown"}
"""Places whose messages the node itself writes. Others repeat the output of a harness or of a task's command."""
MESSAGES: dict[str, NodePart] = {
    "Too many open files": "descriptors",
    "No space left on device": "disk",
    "Disk quota exceeded": "disk",
    "disk is full": "disk",  # SQLite's message
}
TYPES: dict[str, NodePart] = {DISK_FULL: "disk", NO_DESCRIPTORS: "descriptors"}
PLACES: dict[str, NodePart] = {"journal": "disk", "store": "disk", "runtime": "runtime"}
LONGEST_PAUSE = 30
"""As a multiple of the first pause."""


class Suspicion(NamedTuple):
    part: NodePart
    subject: str = ""
    """Which one, if there are several: the runtime's name."""


Probe = Callable[[str], Awaitable[None]]
"""Takes the suspicion's subject; raises if the part does not work."""


def suspicion_of(failure: Failure, task: TaskRequest) -> Suspicion | None:
    """The part of the node that a session's failure may come from; None: the session or its model caused it."""
    if failure.agent:
        return None
    part: NodePart | None = TYPES.get(failure.type)
    if part is None and failure.where in NODE_PLACES:
        part = next((part for sign, part in MESSAGES.items() if sign in failure.message), None)
    if part is None and failure.where == "engine" and failure.type not in REQUEST_FAILURES:
        part = "engine"
    part = part or PLACES.get(failure.where)
    return None if part is None else Suspicion(part, task.runtime.name if part == "runtime" else "")


class NodeHealth:
    """Opened by `open_node`, closed with it."""

    def __init__(self, probes: Mapping[NodePart, Probe], config: NodeConfig) -> None:
        self._probes = probes
        self._config = config
        self.sick: Sickness | None = None
        self._sick_since = 0.0
        """On the monotonic clock."""
        self._well = asyncio.Event()
        self._well.set()
        self._was_sick: dict[NodePart, float] = {}
        """When the last outage or shortage of each part ended, on the monotonic clock."""
        self._back_off = BackOff(config.probe_pause_s, config.probe_pause_s * LONGEST_PAUSE)
        self._examining = asyncio.Lock()
        self._recovery: asyncio.Task[None] | None = None
        self._watchers: list[Callable[[], None]] = []

    @property
    def sick_s(self) -> float:
        """How long the node has been sick; 0 if it is well."""
        return 0.0 if self.sick is None else time.monotonic() - self._sick_since

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
        """The part was exhausted for a moment: the node is not sick, but sessions may have failed."""
        self._was_sick[part] = time.monotonic()

    async def examine(self, suspicion: Suspicion) -> bool:
        """Probes the suspected part. False: the node is sick."""
        async with self._examining:
            if self.sick is None and (why := await self._problem(suspicion)):
                self._fall_sick(suspicion, why)
            return self.sick is None

    def confirm(self) -> None:
        """A session succeeded, so the next outage is a new one."""
        if self.sick is None:
            self._back_off.reset()

    async def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.wait([self._recovery])

    async def _problem(self, suspicion: Suspicion) -> str:
        """Why the part does not work; empty if it does."""
        limit_s = self._config.probe_s
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                await self._probes[suspicion.part](suspicion.subject)
        except Exception as error:  # a plug-in may fail its probe in any way
            if isinstance(error, TimeoutError) and deadline.expired():
                return f"no answer to a probe within {limit_s:g} s"
            return str(error)[:1000] or type(error).__name__
        return ""

    def _fall_sick(self, suspicion: Suspicion, why: str) -> None:
        LOGGER.error("the node's %s has failed; it leases nothing until it works again: %s", suspicion.part, why)
        self.sick = Sickness(part=suspicion.part, why=why, since=time.time())
        self._sick_since = time.monotonic()
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
        self.sick = None
        self._was_sick[suspicion.part] = time.monotonic()
        self._well.set()
