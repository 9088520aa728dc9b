"""A generation whose sessions run at a rollout server: each attempt is submitted, awaited and kept here.

Nothing has to be remembered of an attempt under way. If the process ends, the attempt goes on at the server, and
the next one submits it again under the same id, which starts nothing and finds its result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from polar.client import PolarClient, ServerError
from polar.config import Config
from polar.errors import ConfigError, PolarError
from polar.runs.generate.attempts import TaskAttempts, TasksOfAccounts
from polar.runs.generate.generate import GenerateObserver
from polar.runs.generate.label import AttemptLabel, served_task
from polar.runs.generate.source import AttemptSource
from polar.runs.served import keep_session, same_task
from polar.runs.state import held, record_of
from polar.runtimes.host.threads import to_the_end
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Lease, SessionResult, Stage, TaskRequest


async def run_attempts_at(
    client: PolarClient,
    config: Config,
    paths: RunPaths,
    accounts: Sequence[TaskAttempts],
    observer: GenerateObserver,
) -> None:
    """Submits sessions until no task wants another one; `pools.running` of the config are under way at once."""
    if not any(account.wants_more for account in accounts):
        return
    record = record_of(paths, config, TasksOfAccounts(accounts))
    source = AttemptSource(accounts, observer.judged)
    observer.phase("")
    with held(paths, record) as run:
        async with await Journal.open(paths.journal) as journal:
            known, interrupted = set(await journal.session_ids()), True
            run.begin(record.versions)
            try:
                await _Attempts(client, paths, journal, known, source, observer).run(config.pools.running)
                interrupted = False
            finally:
                run.end(len(known), interrupted=interrupted)


@dataclass(frozen=True)
class _Attempts:
    client: PolarClient
    paths: RunPaths
    journal: Journal
    known: set[str]
    """Ids of the sessions in the journal."""
    source: AttemptSource
    observer: GenerateObserver

    async def run(self, at_once: int) -> None:
        room = asyncio.Semaphore(at_once)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await room.acquire()
                    if not (leases := await self.source.lease(1)):
                        return
                    group.create_task(self._attempt(leases[0])).add_done_callback(lambda _: room.release())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _attempt(self, lease: Lease) -> None:
        session, task = lease.session, lease.task
        label = AttemptLabel(
            task=session.task_id, index=session.index, attempt=session.attempt, group_id=task.group_id
        )
        served = served_task(task, label, self.paths.run_id)
        await self._submit(served)
        self.observer.stage_changed(session.session_id, Stage.RUNNING, time.time())
        result = await self._result(str(served.task_id))
        # Else Ctrl-C would leave half a session in the journal, or one that the card does not count.
        await to_the_end(self._keep(lease, served, result))

    async def _keep(self, lease: Lease, served: TaskRequest, result: SessionResult) -> None:
        session = lease.session
        if result.session_id not in self.known:
            await keep_session(self.client, self.paths, self.journal, served, result, time.time())
            self.known.add(result.session_id)
        self.observer.stage_changed(session.session_id, result.stage, time.time())
        ids = {"session_id": session.session_id, "task_id": session.task_id, "index": session.index}
        await self.source.report(result.model_copy(update=ids), None)

    async def _submit(self, task: TaskRequest) -> None:
        try:
            await self.client.submit(task)
        except ServerError as error:
            if error.status != 409:
                raise
            if await same_task(self.client, task) is None:
                raise ConfigError(
                    f"the server has another task {task.task_id}: the task was changed while an attempt of it was "
                    "under way; give it a new task_id, or choose another --out"
                ) from error

    async def _result(self, task_id: str) -> SessionResult:
        async with aclosing(self.client.results(task_ids=[task_id])) as entries:
            async for entry in entries:
                return entry.result
        raise PolarError(f"the server has no result of task {task_id}")
