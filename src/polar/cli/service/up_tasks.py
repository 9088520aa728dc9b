"""Tasks submitted to a server and watched to their end; their outcome is kept as a run of this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from polar.cli.output import one_line
from polar.client import ServerError
from polar.runs.served import keep_session
from polar.types import Event, Stage

if TYPE_CHECKING:
    from polar.cli.runs.progress import RunProgress
    from polar.client import PolarClient
    from polar.store.journal import Journal
    from polar.store.paths import RunPaths
    from polar.types import TaskRequest

POLL_S = 0.25
CANCEL_S = 30.0
"""How long cancelled sessions may take to end."""


async def nodes_are_ready(client: PolarClient, count: int, stop: asyncio.Event, since: float = 0.0) -> bool:
    """When as many nodes have registered since that time: those of a killed service look alive for a while.
    False: a stop was requested before."""
    while not stop.is_set():
        if sum(node.alive and node.registered >= since for node in await client.nodes()) >= count:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await stop.wait()
    return False


class ServedTasks:
    def __init__(
        self, client: PolarClient, tasks: Sequence[TaskRequest], progress: RunProgress, stop: asyncio.Event
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._progress = progress
        self._stop = stop
        self._waited_for = {task.session_id(n) for task in tasks for n in range(task.num_samples)}
        self._ended_at: dict[str, float] = {}

    async def run(self) -> None:
        """Until every session has its result. A requested stop cancels those that have none yet."""
        if self._stop.is_set():
            return
        for task in self._tasks:  # in the order of the file
            await self._client.submit(task)
        watching = asyncio.create_task(self._watch())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([watching, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                await self._cancel_all()
                await asyncio.wait([watching], timeout=CANCEL_S)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            stopping.cancel()
            await asyncio.gather(watching, stopping, return_exceptions=True)

    async def keep(self, paths: RunPaths, journal: Journal) -> None:
        """Copies what the server has of these sessions to where `polar ls`, `show` and `replay` look."""
        tasks = {task.task_id: task for task in self._tasks}
        for result in self._progress.results:
            ended_at = self._ended_at.get(result.session_id, time.time())
            await keep_session(self._client, paths, journal, tasks[result.task_id], result, ended_at)

    async def _watch(self) -> None:
        async with aclosing(self._client.events()) as events:
            async for event in events:
                await self._take(event)
                if not self._waited_for:
                    return

    async def _take(self, event: Event) -> None:
        if event.kind == "node":
            self._print_health(event)
        if event.session_id is None:
            return
        if event.kind == "stage":
            self._progress.stage_changed(event.session_id, Stage(event.data["stage"]), event.at)
        elif event.kind == "result" and event.session_id in self._waited_for:
            result = (await self._client.session(event.session_id)).result
            assert result is not None, "the event comes with the result"
            self._waited_for.remove(event.session_id)
            self._ended_at[event.session_id] = event.at
            self._progress.stage_changed(event.session_id, result.stage, event.at)
            self._progress.finished(result)

    def _print_health(self, event: Event) -> None:
        """Explains why no results come."""
        if event.data.get("change") == "sick":
            why = one_line(f"{event.data['part']}: {event.data['why']}", 300)
            self._progress.console.print(f"{event.node_id} takes no sessions for now: {why}", style="yellow")
        elif event.data.get("change") == "well":
            self._progress.console.print(f"{event.node_id} is well again", style="yellow")

    async def _cancel_all(self) -> None:
        for task in self._tasks:
            with suppress(ServerError):
                await self._client.cancel_task(str(task.task_id))
