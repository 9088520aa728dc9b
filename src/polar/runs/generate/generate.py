"""A generation from its task file to its folder: run what is still wanted, then write the data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from polar.config import Config
from polar.runs.generate.attempts import TaskAttempts, TasksOfAccounts, restored
from polar.runs.generate.card import DataCard
from polar.runs.generate.plan import GeneratePlan, Outcome
from polar.runs.generate.source import AttemptSource
from polar.runs.generate.write import write_data
from polar.runs.running import PhaseObserver, serve_source
from polar.runs.stored import StoredRun, read_run_async
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.types import SessionResult, TaskRequest


class GenerateObserver(PhaseObserver, Protocol):
    """Sees the progress of a generation."""

    def judged(self, result: SessionResult, outcome: Outcome) -> None: ...


async def accounts_of(tasks: Sequence[TaskRequest], plan: GeneratePlan, paths: RunPaths) -> list[TaskAttempts]:
    """With what the run has so far. Raises `ConfigError` if a task has changed since it was run."""
    run = await stored_run(paths)
    return restored(tasks, plan, run.sessions if run else ())


async def stored_run(paths: RunPaths) -> StoredRun | None:
    """None: no session has begun."""
    return await read_run_async(paths) if paths.journal.exists() and paths.record.exists() else None


async def run_attempts(
    config: Config, paths: RunPaths, accounts: Sequence[TaskAttempts], observer: GenerateObserver
) -> None:
    """Runs sessions until no task wants another one. Starts nothing if none does."""
    if not any(account.wants_more for account in accounts):
        return
    before = await stored_run(paths)
    of_other_tasks = (len(before) if before else 0) - sum(account.begun for account in accounts)

    def journalled() -> int:
        return of_other_tasks + sum(account.begun for account in accounts)

    tasks = TasksOfAccounts(accounts)
    await serve_source(config, paths, tasks, AttemptSource(accounts, observer.judged), observer, journalled)


async def write_folder(
    out: Path, paths: RunPaths, config: Config, accounts: Sequence[TaskAttempts], plan: GeneratePlan, command: str
) -> DataCard:
    """The data and the card of what the run has now, even if nothing has begun."""
    if not paths.record.exists():
        paths.write_record(RunRecord(run_id=paths.run_id, config=config, versions={}, started=time.time()))
    if not paths.journal.exists():
        await (await Journal.open(paths.journal)).close()
    return await write_data(out, await read_run_async(paths), accounts, plan, command)
