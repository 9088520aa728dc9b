"""One command of the `local` runtime, from its start to the end of all processes that it started."""

from __future__ import annotations

import asyncio

from polar.runtimes.host.processes import Family, end
from polar.runtimes.host.spawn import Child, Job, start_directly
from polar.runtimes.host.supervisor import Launcher, SupervisedCommand, SupervisedProgram, SupervisorLost, View


class LocalCommand:
    """Runs below a supervisor if there is a launcher. Without one, or if the supervisor was killed, the command's
    processes are found by their marker and their process group."""

    def __init__(self, marker: str, launcher: Launcher | None, view: View | None = None) -> None:
        self._marker = f"{marker}\0".encode()
        self._launcher = launcher
        self._view = view
        self._supervised: SupervisedCommand | None = None
        self._direct: Child | None = None
        self._has_exited = False
        self._start_is_over = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether none of its processes is known to be alive; does not look for them."""
        if self._supervised is not None:
            empty = self._supervised.empty
            return empty.done() and empty.exception() is None
        return self._has_exited and self._direct is None

    async def start(self, job: Job, out: int, err: int) -> Child:
        try:
            if self._launcher is None:
                self._direct = await start_directly(job, out, err)
                return self._direct
            program = SupervisedProgram(job.argv, job.env, str(job.cwd), self._view)
            self._supervised = await self._launcher.start(program, out, err)
        finally:
            self._start_is_over.set()
        await self._supervised.started()
        return self._supervised

    def exited(self) -> None:
        """The command itself has ended, or never started; the kernel may reuse its process id."""
        self._has_exited = True
        self._start_is_over.set()

    async def end(self, grace_s: float) -> None:
        """Waits for a start that is under way: what it starts would outlive this call."""
        await self._start_is_over.wait()
        if self._supervised is not None:
            try:
                return await self._supervised.end(grace_s)
            except SupervisorLost:
                await end(Family(self._marker), grace_s=grace_s)
        elif self._direct is not None:
            pid = frozenset({self._direct.pid})
            family = Family(self._marker, frozenset(), pid) if self._has_exited else Family(self._marker, pid)
            await end(family, grace_s=grace_s)

    async def break_off(self, child: Child | None, grace_s: float) -> None:
        """Called when no start is under way: the command may never have been started."""
        self._start_is_over.set()
        await self.end(grace_s)
