"""The sessions of an evaluation at a rollout server.

Each is copied into the run of this machine when its result comes, and counts from then on. A server that goes away
takes along only what it has not given yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from polar.child_processes import stop_requested
from polar.cli.runs.progress import RunProgress
from polar.cli.service.remote import check_server, one_reason
from polar.client import PolarClient, Retry, ServerError
from polar.config import Config
from polar.errors import PolarError
from polar.runs.served import keep_session
from polar.runs.state import held, record_of
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import SessionResult, TaskRequest

PATIENT = Retry()
"""For what has to come: long enough for a restart of the server."""
BRIEF = Retry(total_s=2.0)
"""For what has no use once the server is away."""
LOOK_EVERY_S = 1.0
CANCEL_S = 30.0
"""How long cancelled sessions may take to end, counted from the last that did."""
ALL = 10_000
"""The most sessions a task can have."""
SHOWN_TASKS = 10

KeepResult = Callable[[SessionResult], Awaitable[None]]


class PolicyEnd(NamedTuple):
    """How the sessions of a policy ended."""

    interrupted: bool = False
    """By the user, which cancels tasks at a server."""
    left: str = ""
    """Names the tasks that may still run at a server; empty: there are none."""


async def run_tasks_at(
    server: str, config: Config, paths: RunPaths, tasks: Sequence[TaskRequest], progress: RunProgress
) -> PolicyEnd:
    """A `PolarError` names the tasks that may still run, too."""
    task_of = {str(task.task_id): task for task in tasks}
    stop, interrupted = stop_requested(), True
    with held(paths, record_of(paths, config, tasks)) as run:
        await check_server(server)
        async with await Journal.open(paths.journal) as journal, PolarClient(server, retry=PATIENT) as client:

            async def keep(result: SessionResult) -> None:
                await keep_session(client, paths, journal, task_of[result.task_id], result, time.time())

            run.begin({})
            served = EvaluatedTasks(client, tasks, progress, keep)
            try:
                await served.run(stop)
                interrupted = stop.is_set()
            finally:
                run.end(len(progress.results), interrupted=interrupted)
    return PolicyEnd(interrupted, served.left)


class EvaluatedTasks:
    """Tasks at a server, from their submission to their last result."""

    def __init__(
        self, client: PolarClient, tasks: Sequence[TaskRequest], progress: RunProgress, keep: KeepResult
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._progress = progress
        self._keep = keep
        self._open: dict[str, int] = {}
        """Of each task that the server may have: how many of its sessions have no result here."""
        self._submitted = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Until every session has its result. A requested stop cancels those that have none yet."""
        working = asyncio.create_task(self._work(stop))
        beside = [asyncio.create_task(stop.wait()), asyncio.create_task(self._look())]
        try:
            await asyncio.wait([working, beside[0]], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await self._end_early(working)
            if working.done():
                working.result()
        except PolarError as error:
            if not (stop.is_set() and isinstance(error, ServerError)):
                raise PolarError("\n  ".join(filter(None, (str(error), self.left)))) from error
        finally:
            for task in (working, *beside):
                task.cancel()
            await asyncio.gather(working, *beside, return_exceptions=True)

    @property
    def left(self) -> str:
        """Names the tasks that may still run; empty: there are none."""
        if not self._open:
            return ""
        url, more = self._client.url, len(self._open) - SHOWN_TASKS
        names = ", ".join(list(self._open)[:SHOWN_TASKS]) + (f" and {more} more" if more > 0 else "")
        return (
            f"{sum(self._open.values())} sessions have no result here and may still run at the server, of the "
            f"tasks {names}. `polar ls TASK --server {url}` shows how those of one end, "
            f"`polar cancel TASK --task --server {url}` cancels them"
        )

    async def _work(self, stop: asyncio.Event) -> None:
        self._progress.phase("")
        try:
            await self._submit(stop)
        finally:
            self._submitted.set()
        if not self._open:
            return
        async with aclosing(self._client.results(task_ids=list(self._open))) as entries:
            async for entry in entries:
                await self._keep(entry.result)
                self._count(entry.result)

    async def _submit(self, stop: asyncio.Event) -> None:
        """In the order of the file. A task that is refused cancels those before it."""
        for task in self._tasks:
            if stop.is_set():
                return
            task_id = str(task.task_id)
            self._open[task_id] = task.num_samples  # also if the reply is lost
            try:
                await self._client.submit(task)
            except ServerError as error:
                if not error.transient:
                    del self._open[task_id]
                    if await self._cancel():
                        self._open.clear()
                raise

    def _count(self, result: SessionResult) -> None:
        self._open[result.task_id] -= 1
        if not self._open[result.task_id]:
            del self._open[result.task_id]
        self._progress.finished(result)
        self._progress.stage_changed(result.session_id, result.stage, time.time())

    async def _end_early(self, working: asyncio.Task[None]) -> None:
        if not await self._cancel():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await self._submitted.wait()
        await self._cancel()  # what was being submitted at the first time
        before = -1
        while not working.done() and before < len(self._progress.results):
            before = len(self._progress.results)
            await asyncio.wait([working], timeout=CANCEL_S)

    async def _cancel(self) -> bool:
        """False: the server does not answer."""
        async with PolarClient(self._client.url, retry=BRIEF) as client:
            for task_id in list(self._open):
                try:
                    await client.cancel_task(task_id)
                except ServerError as error:
                    if error.transient:
                        return False
        return True

    async def _look(self) -> None:
        """Shows where the sessions are. Polls: the server's events would begin with its very first."""
        ended = set[str]()
        async with PolarClient(self._client.url, retry=BRIEF) as client:
            while True:
                try:
                    await self._show_stages(client, ended)
                    self._progress.note_outage("")
                except ServerError as error:
                    self._progress.note_outage(_outage(client.url, error))
                await asyncio.sleep(LOOK_EVERY_S)

    async def _show_stages(self, client: PolarClient, ended: set[str]) -> None:
        """`ended`: tasks without open sessions; asks no more about them."""
        todo, waits = [task_id for task_id in self._open if task_id not in ended], ""
        for task_id in todo:
            sessions = await client.sessions(task_id, limit=ALL)
            for session in sessions:
                self._progress.stage_changed(session.session_id, session.stage, time.time())
            if sessions and all(session.stage.final for session in sessions):
                ended.add(task_id)
            elif not waits:
                waits = (await client.task(task_id)).waits
        if not todo:
            await client.policy()  # does it answer?
        self._progress.waits = waits


def _outage(server: str, error: ServerError) -> str:
    """Empty: it answers."""
    if not error.transient:
        return ""
    reason = one_reason(error) if error.status is None else error.detail
    return f"the server at {server} does not answer ({reason}); trying again"
