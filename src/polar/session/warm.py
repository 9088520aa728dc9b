"""Runtimes that are started ahead and wait for a session that asks for exactly the same.

A warm runtime has an empty workspace, or the task's base, and no session was ever in it. One session takes it and
ends it, as it would end one that it started. This helps where sessions come in bursts: between them the node has
time to start runtimes, and the next sessions need not wait for that. Only runtimes that contain a session wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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


class _Order(NamedTuple):
    """What a session asked for."""

    recipe: WarmRecipe
    spec: Spec
    folders: SessionFolders


class _Waiting(NamedTuple):
    recipe: WarmRecipe
    runtime: Runtime


class WarmRuntimes:
    """What the last `size` sessions asked for, started once more."""

    def __init__(self, size: int, folder: Path, turn: asyncio.Semaphore, idle_s: float = IDLE_S) -> None:
        self._folder = folder
        self._turn = turn
        """A start takes one of the workers that set sessions up, so it never adds to their load."""
        self._idle_s = idle_s
        self.idle = asyncio.Event()
        """Set while the node waits for sessions. Under a steady load it does not: there the READY buffer sets
        sessions up ahead, and further starts would only take time from them."""
        self._is_filling = size > 0
        self._orders: deque[_Order] = deque(maxlen=size)
        self._waiting: list[_Waiting] = []
        self._asked = asyncio.Event()
        self._numbers = itertools.count(1)
        self._filler: asyncio.Task[None] | None = None

    async def take(self, spec: Spec, folders: SessionFolders) -> Runtime | None:
        """A started runtime for this session, if one waits; another one will be started."""
        if not self._is_filling or not is_contained(spec):
            return None
        order = _Order(WarmRecipe.of(spec, folders), spec, folders)
        self._orders.append(order)
        self._asked.set()
        if self._filler is None:
            self._filler = asyncio.create_task(self._fill(), name="warm runtimes")
        found = next((each for each in self._waiting if each.recipe == order.recipe), None)
        if found is None:
            return None
        self._waiting.remove(found)
        return await _given(found.runtime, folders)

    async def close(self) -> None:
        """Ends those that no session took."""
        self._is_filling = False
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait([self._filler])
        while self._waiting:
            await _end(self._waiting.pop().runtime)
        await in_thread(remove_tree, self._folder)

    async def _fill(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._missing() is not None:
                await self._until_idle()
                if (order := self._missing()) is not None:
                    await self._drop_surplus()
                    await self._start(order)

    async def _until_idle(self) -> None:
        while True:
            await self.idle.wait()
            await asyncio.sleep(self._idle_s)
            if self.idle.is_set():
                return

    def _missing(self) -> _Order | None:
        there = Counter(each.recipe for each in self._waiting)
        wanted = Counter(order.recipe for order in self._orders)
        return next(
            (order for order in reversed(self._orders) if there[order.recipe] < wanted[order.recipe]), None
        )

    async def _drop_surplus(self) -> None:
        """Those that the last sessions did not ask for."""
        wanted = Counter(order.recipe for order in self._orders)
        kept: Counter[WarmRecipe] = Counter()
        for each in tuple(self._waiting):
            kept[each.recipe] += 1
            if kept[each.recipe] > wanted[each.recipe]:
                self._waiting.remove(each)
                await _end(each.runtime)

    async def _start(self, order: _Order) -> None:
        number = next(self._numbers)
        own = self._folder / str(number)
        async with self._turn:
            runtime: Runtime = registry.make("runtime", order.spec)
            if not isinstance(runtime, AdoptableRuntime):
                self._forget(order)
                return
            name = f"warm-{number}-{order.folders.session_id}"[:128]
            mine = msgspec.structs.replace(order.folders, session_id=name, root=own / "place", logs=own / "logs")
            try:
                async with asyncio.timeout(START_LIMIT_S):
                    await runtime.start(mine)
            except BaseException as error:
                await to_the_end(_end(runtime))
                if not isinstance(error, Exception):
                    raise
                LOGGER.info("a warm runtime %s did not start: %s", order.spec.name, error)
                self._forget(order)
                return
        self._waiting.append(_Waiting(order.recipe, runtime))

    def _forget(self, order: _Order) -> None:
        """Until a session asks for it again."""
        with suppress(ValueError):
            self._orders.remove(order)


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
            await to_the_end(_end(runtime))
    return runtime if taken else None


async def _lives(runtime: Runtime) -> bool:
    """It may have ended while it waited."""
    try:
        async with asyncio.timeout(CHECK_LIMIT_S):
            return (await runtime.exec(Command(("true",), log_name="warm"))).exit_code == 0
    except Exception:
        return False


async def _end(runtime: Runtime) -> None:
    """One that cannot be ended is left to the next sweep."""
    try:
        await runtime.stop()
    except Exception as error:
        LOGGER.warning("a warm runtime could not be ended: %s", error)
