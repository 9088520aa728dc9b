"""Stored runs: their sessions with results, calls and traces. Nothing here writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from polar import config
from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.errors import PolarError, did_you_mean
from polar.runs.event_loop import run_apart
from polar.store.journal import Journal
from polar.store.later_scores import read_scores
from polar.store.paths import RunPaths, RunRecord, find_run, list_runs
from polar.store.trajectories import read_trajectory
from polar.types import (
    Call,
    LaterScore,
    Lease,
    SessionResult,
    Spec,
    Stage,
    TaskRequest,
    Trace,
    TraceRow,
    Trajectory,
)

T = TypeVar("T")

SHOWN_MATCHES = 10


@dataclass(frozen=True)
class StoredSession:
    """One session of a stored run. Calls and traces are read when they are asked for."""

    run: RunPaths
    lease: Lease
    """The session with the stage it is in now, and its task."""
    result: SessionResult | None
    """None: the session has not ended."""
    call_count: int
    sampled_tokens: int

    @property
    def session_id(self) -> str:
        return self.lease.session.session_id

    @property
    def task(self) -> TaskRequest:
        return self.lease.task

    @property
    def stage(self) -> Stage:
        return self.lease.session.stage

    @property
    def folder(self) -> Path:
        """Logs, traces and kept files."""
        return self.run.session(self.session_id).root

    @cached_property
    def calls(self) -> list[Call]:
        """The captured model calls, parents before children."""
        return _read(self.run, lambda journal: journal.calls(self.session_id))

    @cached_property
    def stages(self) -> list[tuple[Stage, float]]:
        """Each stage with the time at which it began, in Unix seconds."""
        return _read(self.run, lambda journal: journal.stages(self.session_id))

    @property
    def trajectory(self) -> Trajectory | None:
        """Traces, dropped tokens and statistics, read from disk. None: the session has no traces, or not yet."""
        path = self.run.session(self.session_id).traces
        return read_trajectory(path) if path.exists() else None

    @property
    def traces(self) -> tuple[Trace, ...]:
        """With reward, group, sample and attempt; read from disk."""
        trajectory = self.trajectory
        return trajectory.traces if trajectory else ()

    @property
    def later_scores(self) -> list[LaterScore]:
        """What `polar rescore --write` stored of this session, oldest first. `result` is not changed by them."""
        return [later for later in read_scores(self.run) if later.session_id == self.session_id]

    @property
    def origin(self) -> dict[str, str]:
        return {"run_id": self.run.run_id}

    @property
    def renderer(self) -> Spec | None:
        """Decodes the tokens; None: only the engine of the run can."""
        return self.run.read_record().config.model.spelling


@dataclass(frozen=True)
class StoredRun:
    """A run on disk. Iterating gives its sessions in the order of the tasks, samples of a task adjacent."""

    paths: RunPaths
    sessions: tuple[StoredSession, ...]

    @property
    def run_id(self) -> str:
        return self.paths.run_id

    @property
    def record(self) -> RunRecord:
        """Config, versions, start and end of the run."""
        return self.paths.read_record()

    @property
    def results(self) -> list[SessionResult]:
        """Of the sessions that have ended."""
        return [session.result for session in self.sessions if session.result is not None]

    @property
    def traces(self) -> list[Trace]:
        """Of all sessions. For a large run iterate over the sessions and hold one session's traces at a time."""
        return [trace for session in self.sessions for trace in session.traces]

    def rows(self, *, trainable: bool = True) -> Iterator[TraceRow]:
        """The traces as plain rows (`Trace.to_row`), read session by session. With `trainable` only those that a
        trainer may use: `SessionResult.trainable` holds and at least one token is unmasked."""
        for session in self.sessions:
            if trainable and not (session.result and session.result.trainable):
                continue
            yield from (trace.to_row() for trace in session.traces if trace.trainable_tokens or not trainable)

    def groups(self) -> Iterator[Group]:
        """The groups of which every session has ended, as `PolarClient.groups` gives them; the traces of one group
        are read at a time."""
        members = defaultdict[str, list[StoredSession]](list)
        for session in self.sessions:
            members[session.task.group].append(session)
        for group_id, sessions in members.items():
            ended = [(session, session.result) for session in sessions if session.result is not None]
            if len(ended) == len(sessions):
                finished = (FinishedSession(result, session.trajectory) for session, result in ended)
                yield Group(group_id, tuple(finished))

    def __iter__(self) -> Iterator[StoredSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def __getitem__(self, session_id: str) -> StoredSession:
        """By id, or by a beginning of it that no other id has."""
        by_id = {session.session_id: session for session in self.sessions}
        return by_id[chosen_session(session_id, list(by_id), self.run_id)]


def load_run(which: str | Path | None = None, *, runs_dir: str | Path | None = None) -> StoredRun:
    """Opens a stored run by its folder, by its id or the unique beginning of it; without one, the latest.

    Ids are looked up in `runs_dir`, by default that of ./polar.toml, else ./polar-runs. Also opens a run that is
    still going: its sessions are as they were at this moment.

        run = polar.load_run("20261115-051233-ab12")
        for session in run:
            print(session.session_id, session.stage, session.result and session.result.reward)
    """
    if which is not None and (Path(which) / "run.json").is_file():
        return read_run(RunPaths(Path(which)))
    return read_run(find_run(runs_dir_of(runs_dir), None if which is None else str(which)))


def read_run(paths: RunPaths) -> StoredRun:
    return run_apart(read_run_async(paths))


async def read_run_async(paths: RunPaths) -> StoredRun:
    async with await Journal.open(paths.journal, read_only=True) as journal:
        results = {result.session_id: result for result in await journal.results()}
        rows = await journal.sessions()
    sessions = (
        StoredSession(paths, row.lease, results.get(row.lease.session.session_id), row.calls, row.sampled_tokens)
        for row in rows
    )
    return StoredRun(paths, tuple(sessions))


def load_session(runs_dir: Path, run: str | None, session: str) -> StoredSession:
    """A session by its id or the unique beginning of it, in the given run or the latest that holds it."""
    chosen = find_run(runs_dir, run)
    begun = [paths for paths in list_runs(runs_dir) if paths.journal.exists()]
    for paths in [chosen] if run is not None else reversed(begun):
        known = _read(paths, lambda journal: journal.session_ids())
        if any(session_id.startswith(session) for session_id in known):
            return _read(paths, partial(_session, paths, chosen_session(session, known, paths.run_id)))
    where = f"run {chosen.run_id}" if run is not None else f"any run of {runs_dir}"
    latest = _read(chosen, lambda journal: journal.session_ids()) if chosen.journal.exists() else []
    near = did_you_mean(session, latest).partition("; known")[0]
    raise PolarError(f"no session {session!r} in {where}{near or ';'} `polar ls RUN` lists the sessions of a run")


async def _session(paths: RunPaths, session_id: str, journal: Journal) -> StoredSession:
    lease, result = await journal.lease(session_id), await journal.result(session_id)
    calls = await journal.calls(session_id)
    return StoredSession(paths, lease, result, len(calls), sum(len(call.completion_ids) for call in calls))


def chosen_session(wanted: str, known: Sequence[str], run_id: str) -> str:
    """The id of a session, given whole or by its unique beginning."""
    matches = [wanted] if wanted in known else [each for each in known if each.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise PolarError(f"no session {wanted!r} in run {run_id}; `polar ls RUN` lists the sessions of a run")
    more = f" and {len(matches) - SHOWN_MATCHES} more" if len(matches) > SHOWN_MATCHES else ""
    shown = ", ".join(matches[:SHOWN_MATCHES]) + more
    raise PolarError(f"{len(matches)} sessions of run {run_id} begin with {wanted!r}: {shown}")


def runs_dir_of(given: str | Path | None) -> Path:
    """The folder of runs that the user gave, else the config's."""
    return Path(given) if given else config.load().runs_dir


def _read(paths: RunPaths, work: Callable[[Journal], Awaitable[T]]) -> T:
    async def read() -> T:
        async with await Journal.open(paths.journal, read_only=True) as journal:
            return await work(journal)

    return run_apart(read())
