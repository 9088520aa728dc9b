"""The actor of one machine: keeps its gateway nodes running as child processes, and stops them with itself.

A node that dies is restarted here, with growing pauses; an actor that dies is restarted by Ray. If the actor is
killed, the pipe to its nodes closes, and they hand their sessions back and end. If the whole machine is lost, the
server's leases expire. Imports no Ray: Ray wraps the class.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from polar.back_off import BackOff
from polar.child_processes import ChildCrashed, ChildRefused, running
from polar.cluster.gateway_process import GatewayProcess
from polar.cluster.ray.plan import FleetPlan
from polar.store.paths import write_whole
from polar.store.private import private_folder

WELL_S = 300.0
"""Nodes that were kept running for so long are well: those that die each time are given up sooner."""


@dataclass(frozen=True)
class MachineStatus:
    """What `polar cluster ray status` shows of a machine."""

    host: str
    pid: int
    """Of the actor."""
    folder: str
    nodes: int
    """Gateway nodes that it keeps running."""
    problem: str = ""
    """Why they do not run; empty: nothing known."""


class MachineActor:
    def __init__(self, plan: FleetPlan, short_id: str) -> None:
        self._plan = plan
        self._folder = Path(plan.folder, short_id)
        self._stop = asyncio.Event()
        self._problem = ""
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def status(self) -> MachineStatus:
        return MachineStatus(
            socket.gethostname(), os.getpid(), str(self._folder), self._plan.nodes_per_machine, self._problem
        )

    async def stop(self) -> None:
        """Returns when no node is left: they have handed their sessions back, or drained."""
        self._stop.set()
        await asyncio.wait([self._serving])

    async def _serve(self) -> None:
        """A node that refuses to run, as with a wrong token, is not tried again: `status` has the reason. One that
        crashes is."""
        back_off = BackOff(first_s=10.0, longest_s=300.0)
        while not self._stop.is_set():
            try:
                self._prepare()
                async with running(*(node.program() for node in self._nodes())):
                    if not await self._stopped_within(WELL_S):
                        self._problem = ""
                        back_off.reset()
                    await self._stop.wait()
                return
            except ChildCrashed as error:
                self._problem = str(error)
            except (ChildRefused, OSError) as error:
                self._problem = f"{error}; after a fix: `polar cluster ray down`, then `up`"
                return
            await self._stopped_within(back_off.next_s())

    async def _stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        return self._stop.is_set()

    def _prepare(self) -> None:
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_folder(self._folder)
        if self._plan.config:
            write_whole(self._folder / "polar.toml", self._plan.config.encode())

    def _nodes(self) -> list[GatewayProcess]:
        plan = self._plan
        config = self._folder / "polar.toml" if plan.config else None
        return [
            GatewayProcess(
                f"gateway {number}",
                plan.server,
                self._folder / "runs",
                config,
                self._folder / f"gateway-{number}.log",
                drain_s=plan.drain_s,
                environment={"POLAR_NODE_TOKEN": plan.node_token},
            )
            for number in range(1, plan.nodes_per_machine + 1)
        ]
