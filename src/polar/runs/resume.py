"""Continues a stored run in its own folder: sessions whose results stand are kept, the others run again.

The journal has every session that began and every result. The tasks are in the run's `tasks.jsonl`, because a
session that never began is not in the journal.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from polar.config import Config
from polar.data.source import EarlierSessions
from polar.data.stored_tasks import PickedTasks, StoredTasks
from polar.data.task_formats import Problems
from polar.data.tasks import read_tasks
from polar.errors import ConfigError
from polar.node.leftovers import is_held
from polar.runs.stored import StoredSession, read_run_async
from polar.store.paths import RunPaths, write_parts
from polar.types import EarlierAttempt, SessionResult, Stage, TaskRequest


@dataclass(frozen=True)
class ResumePlan:
    """What is left to do of a run."""

    tasks: Sequence[TaskRequest]
    """All of the run, with those that are new."""
    earlier: EarlierSessions
    results: list[SessionResult]
    """Those that stand."""

    @property
    def open_tasks(self) -> PickedTasks:
        """Tasks of which a session runs."""
        return PickedTasks(self.tasks, array("Q", (n for n, task in enumerate(self.tasks) if self._is_open(task))))

    def _is_open(self, task: TaskRequest) -> bool:
        return any(task.session_id(n) not in self.earlier.finished for n in range(task.num_samples))

    @property
    def words(self) -> str:
        total = sum(task.num_samples for task in self.tasks)
        left = total - len(self.results)
        return f"{len(self.results)} of {total} sessions have their result; {left or 'none'} to run"


def write_tasks(paths: RunPaths, tasks: Sequence[TaskRequest]) -> None:
    write_parts(paths.tasks, (task.model_dump_json().encode() + b"\n" for task in tasks))


async def planned_resume(
    paths: RunPaths, config: Config, given: Sequence[TaskRequest] | None, *, retry_failed: bool = False
) -> ResumePlan:
    """Raises `ConfigError` if the run is still going, or tasks or config are not the run's. `given`: tasks of a
    file; those that the run does not have are added to it."""
    _refuse(paths, config)
    sessions = (await read_run_async(paths)).sessions if paths.journal.is_file() else ()
    tasks = _tasks(paths, sessions, given)
    stored = {session.session_id: session for session in sessions if _is_of(session, tasks)}
    results = [
        session.result for session in stored.values() if session.result and _stands(session.result, retry_failed)
    ]
    finished = frozenset(result.session_id for result in results)
    attempts = {name: _attempts(each) for name, each in stored.items() if name not in finished}
    return ResumePlan(tasks, EarlierSessions(finished, attempts), results)


def _refuse(paths: RunPaths, config: Config) -> None:
    record = paths.read_record()
    if is_held(paths):
        raise ConfigError(
            f"run {paths.run_id} is still going; end it first. If its process was on another machine and is dead, "
            f"remove {paths.owner}"
        )
    if (paths.root / "nodes").is_dir() and record.finished is None:
        raise ConfigError(
            f"run {paths.run_id} is of `polar up`, and was killed before its results were copied here; its nodes "
            f"have them, as runs in {paths.root / 'nodes'}"
        )
    for part in ("model", "engine"):
        if getattr(record.config, part) != getattr(config, part):
            raise ConfigError(
                f"run {paths.run_id} was made with another [{part}]: use the same config, or start a new run"
            )


def _is_of(session: StoredSession, tasks: StoredTasks) -> bool:
    """A task that was given again may have fewer samples now."""
    task = tasks.find(session.lease.session.task_id)
    index = session.lease.session.index
    return task is not None and index < task.num_samples and task.session_id(index) == session.session_id


def _tasks(paths: RunPaths, sessions: Sequence[StoredSession], given: Sequence[TaskRequest] | None) -> StoredTasks:
    if paths.tasks.is_file():
        known = read_tasks(paths.tasks)
    elif given is None:
        raise ConfigError(f"{paths.tasks} is missing: give the task file too, `polar run --resume RUN TASKS`")
    else:
        known = StoredTasks(session.task for session in sessions)
    problems = Problems(f"run {paths.run_id}")
    for task in given or ():
        if (other := known.find(str(task.task_id))) is None:
            known.add(task)
        elif other != task:
            problems.add(
                f"task {task.task_id}", "the run has another task of this id; rename it or start a new run"
            )
    problems.raise_if_any()
    return known


def _stands(result: SessionResult, retry_failed: bool) -> bool:
    """A session that Ctrl-C cancelled goes on; one that was ended because it was stale does not."""
    if result.broken_off_stale:
        return True
    return result.stage is not Stage.CANCELLED and not (retry_failed and result.failed_by_infrastructure)


def _attempts(session: StoredSession) -> tuple[EarlierAttempt, ...]:
    failure = session.result.failure if session.result else None
    ended = EarlierAttempt(
        attempt=session.lease.session.attempt,
        where=failure.where if failure else "node",
        why=failure.message if failure else "the run ended before the session did",
    )
    return (*session.lease.earlier, ended)
