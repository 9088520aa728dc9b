"""The life of a run: whether it goes on, has ended or was killed, and what is left of a start that is refused."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum

from polar.config import Config
from polar.data.stored_tasks import set_origin
from polar.node.leftovers import Holder, claim, holder_of, release
from polar.runtimes.files.folders import remove_tree
from polar.store.paths import RunPaths, RunRecord
from polar.types import TaskRequest


class RunState(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    """It ended before its last session, by Ctrl-C or an error; what was captured is kept."""
    KILLED = "killed"
    """Its process is gone and could not say so."""
    ELSEWHERE = "elsewhere"
    """Its process is on another machine, or was there before a reboot: it cannot be seen from here."""

    @property
    def goes_on(self) -> bool:
        """`polar run --resume` may have something left to do."""
        return self in (RunState.INTERRUPTED, RunState.KILLED)


_OF_HOLDER = {
    Holder.LIVE: RunState.RUNNING,
    Holder.ELSEWHERE: RunState.ELSEWHERE,
    Holder.DEAD: RunState.KILLED,
    Holder.NONE: RunState.KILLED,
}


def state_of(paths: RunPaths, record: RunRecord) -> RunState:
    if record.finished is not None:
        return RunState.INTERRUPTED if record.interrupted else RunState.FINISHED
    return _OF_HOLDER[holder_of(paths.owner)]


def record_of(paths: RunPaths, config: Config, tasks: Sequence[TaskRequest]) -> RunRecord:
    """Of a run that begins, or goes on: then when it began, and what ran it, stay."""
    before = paths.read_record() if paths.record.exists() else None
    return RunRecord(
        run_id=paths.run_id,
        config=config,
        tasks=len(tasks),
        task_set=set_origin(tasks) or (before.task_set if before else ""),
        started=before.started if before else time.time(),
        versions=before.versions if before else {},
    )


class HeldRun:
    """A run that is this process's. Writes its record as it goes on."""

    def __init__(self, paths: RunPaths, record: RunRecord) -> None:
        self._paths = paths
        self._record = record
        self.began = False
        """From now on the folder is worth keeping."""

    def begin(self, versions: dict[str, str]) -> None:
        """Its first session may start."""
        self._record = self._record.model_copy(update={"versions": versions})
        self._paths.write_record(self._record)
        self.began = True

    def end(self, sessions: int | None = None, *, interrupted: bool) -> None:
        """`sessions`: number in the journal."""
        ended = {"finished": time.time(), "sessions": sessions, "interrupted": interrupted}
        self._paths.write_record(self._record.model_copy(update=ended))


@contextmanager
def held(paths: RunPaths, record: RunRecord) -> Generator[HeldRun]:
    """The run is this process's while the body runs. An error before it began leaves the folder as it was, so a
    refused start leaves none; Ctrl-C leaves a run that can go on."""
    earlier = paths.read_record() if paths.record.exists() else None
    run = HeldRun(paths, record)
    claim(paths)
    paths.write_record(record)
    try:
        yield run
    except BaseException as error:
        if not run.began and earlier is not None:
            paths.write_record(earlier)
        elif not run.began and isinstance(error, Exception):
            remove_tree(paths.root)
        elif not run.began:
            run.end(interrupted=True)
        raise
    finally:
        if paths.root.exists():
            release(paths)
