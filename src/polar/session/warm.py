"""Runtimes that are started ahead and wait for a session that asks for exactly the same.

A warm runtime has an empty workspace, or the task's base, and no session was ever in it. One session takes it and
ends it, as it would end one that it started. This helps where sessions come in bursts: between them the node has
time to start runtimes, and the next sessions need not wait for that. Only runtimes that contain a session wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from polar import registry
from polar.runtimes.base import AdoptableRuntime, Command, Runtime, SessionFolders
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread, to_the_end
from polar.session.own_runtime import is_contained
from polar.types import Spec

LOGGER = logging.getLogger("polar.session")
IDLE_S = 0.5
"""A node is idle if it has waited so long for a session."""
START_LIMIT_S = 300.0
CHECK_LIMIT_S = 10.0


class WarmRecipe(NamedTuple):
    """What a runtime is started with; equal ones give equal runtimes."""

    spec: str
    """As JSON."""
    base: Path | None
    programs: tuple[str, ...]

    @classmethod
    def of(cls, spec: Spec, folders: SessionFolders) -> WarmRecipe:
        programs = tuple(f"{each.name}={each.source}" for each in folders.programs)
        return cls(spec.model_dump_json(), folders.base, programs)


class _Waiting(NamedTuple):
    recipe: WarmRecipe
    runtime: Runtime


class WarmRuntimes:
    """At most `size` of them, of the kinds that sessions asked for last."""

    def __init__(self, size: int, folder: Path, turn: asyncio.Semaphore, idle_s: float = IDLE_S) -> None:
        self._size = size
        self._folder = folder
        self._turn = turn
        """A start takes one of the workers that set sessions up, so it never adds to their load."""
        self._idle_s = idle_s
        self.idle = asyncio.Event()
        """Set while the node waits for sessions. Under a steady load it does not: there the READY buffer sets
        sessions up ahead, and further starts would only take time from them."""
        self._waiting: deque[_Waiting] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._is_filling = size > 0

    async def take(self, spec: Spec, folders: SessionFolders) -> Runtime | None:
        """A started runtime for this session, if one waits; begins to start another one."""
        recipe = WarmRecipe.of(spec, folders)
        if not self._is_filling and not self._waiting:
            return None
        found = next((each for each in self._waiting if each.recipe == recipe), None)
        if found is not None:
            self._waiting.remove(found)
        self._fill(recipe, spec, folders)
        return None if found is None else await _given(found.runtime, folders)

    def stop_filling(self) -> None:
        """No more sessions will come than those that are here."""
        self._is_filling = False

    async def close(self) -> None:
        """Ends those that no session took."""
        self.stop_filling()
        for task in self._starting:
            task.cancel()
        while self._starting or self._ending:
            await asyncio.wait([*self._starting, *self._ending])
        while self._waiting:
            with suppress(Exception):
                await self._waiting.popleft().runtime.stop()
        await in_thread(remove_tree, self._folder)

    def _fill(self, recipe: WarmRecipe, spec: Spec, folders: SessionFolders) -> None:
        if not self._is_filling or not is_contained(spec):
            return
        if len(self._waiting) + len(self._starting) >= self._size:
            other = next((each for each in self._waiting if each.recipe != recipe), None)
            if other is None:
                return
            self._waiting.remove(other)  # the oldest of another kind
            self._do(self._ending, other.runtime.stop())
        self._do(self._starting, self._start(recipe, spec, folders))

    def _do(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="warm runtime")
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _until_idle(self) -> None:
        while True:
            await self.idle.wait()
            await asyncio.sleep(self._idle_s)
            if self.idle.is_set():
                return

    async def _start(self, recipe: WarmRecipe, spec: Spec, folders: SessionFolders) -> None:
        number = next(self._numbers)
        own = self._folder / str(number)
        await self._until_idle()
        async with self._turn:
            runtime: Runtime = registry.make("runtime", spec)
            if not self._is_filling or not isinstance(runtime, AdoptableRuntime):
                return
            name = f"warm-{number}-{folders.session_id}"[:128]
            mine = msgspec.structs.replace(folders, session_id=name, root=own / "place", logs=own / "logs")
            try:
                async with asyncio.timeout(START_LIMIT_S):
                    await runtime.start(mine)
            except BaseException as error:
                await runtime.stop()
                if isinstance(error, asyncio.CancelledError):
                    raise
                LOGGER.info("a warm runtime %s did not start: %s", spec.name, error)
                return
        self._waiting.append(_Waiting(recipe, runtime))


async def _given(runtime: Runtime, folders: SessionFolders) -> Runtime | None:
    """To the session; None: it does not work any more."""
    taken = False
    try:
        if await _lives(runtime):
            assert isinstance(runtime, AdoptableRuntime), "others do not wait"
            runtime.adopt(folders.session_id, folders.logs)
            taken = True
    finally:
        if not taken:
            await to_the_end(runtime.stop())
    return runtime if taken else None


async def _lives(runtime: Runtime) -> bool:
    """It may have ended while it waited."""
    try:
        async with asyncio.timeout(CHECK_LIMIT_S):
            return (await runtime.exec(Command(("true",), log_name="warm"))).exit_code == 0
    except Exception:
        return False
