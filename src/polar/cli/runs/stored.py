"""Sessions as the commands show them, and how those of a local run are read back. Nothing here writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from polar import config
from polar.errors import PolarError
from polar.store.journal import Journal, JournalledSession
from polar.store.paths import RunPaths, find_run, list_runs
from polar.store.trajectories import read_trajectory
from polar.types import Call, Lease, SessionResult, Spec, Stage, Trajectory


@dataclass(frozen=True)
class StoredRun:
    paths: RunPaths
    sessions: list[JournalledSession]
    results: dict[str, SessionResult]
    """By session id; a session that is not done has none."""


@dataclass(frozen=True)
class StoredSession(ABC):
    """One session with all there is to show of it, wherever it was read."""

    lease: Lease
    stages: list[tuple[Stage, float]]
    """With the time at which each began, in Unix seconds."""
    calls: list[Call]
    result: SessionResult | None

    @property
    def session_id(self) -> str:
        return self.lease.session.session_id

    @property
    @abstractmethod
    def origin(self) -> dict[str, str]:
        """Where it was read, by the name JSON has for it."""

    @abstractmethod
    def trajectory(self) -> Trajectory | None:
        """None where the session has left no traces, or not yet."""

    @abstractmethod
    def renderer(self) -> Spec | None:
        """What spells its tokens; None: only its engine does."""


@dataclass(frozen=True)
class RunSession(StoredSession):
    run: RunPaths

    @property
    def origin(self) -> dict[str, str]:
        return {"run_id": self.run.run_id}

    @property
    def traces_path(self) -> Path:
        return self.run.session(self.session_id).traces

    def trajectory(self) -> Trajectory | None:
        return read_trajectory(self.traces_path) if self.traces_path.exists() else None

    def renderer(self) -> Spec | None:
        return self.run.read_record().config.model.spelling


def runs_dir_of(given: Path | None) -> Path:
    """What the user said, else what the config says."""
    return given or config.load().runs_dir


async def load_run(paths: RunPaths) -> StoredRun:
    async with await Journal.open(paths.journal, read_only=True) as journal:
        results = {result.session_id: result for result in await journal.results()}
        return StoredRun(paths, await journal.sessions(), results)


async def load_session(runs_dir: Path, run: str | None, session: str) -> RunSession:
    """A session by its id or the unique beginning of it, in the given run or the latest that holds it."""
    chosen = find_run(runs_dir, run)
    runs = [chosen] if run is not None else reversed(list_runs(runs_dir))
    for paths in runs:
        async with await Journal.open(paths.journal, read_only=True) as journal:
            session_id = _match(session, await journal.session_ids(), paths)
            if session_id is not None:
                return await _load(paths, journal, session_id)
    where = f"run {chosen.run_id}" if run is not None else f"any run of {runs_dir}"
    raise PolarError(f"no session {session!r} in {where}; `polar ls RUN` lists the sessions of a run")


async def _load(paths: RunPaths, journal: Journal, session_id: str) -> RunSession:
    return RunSession(
        run=paths,
        lease=await journal.lease(session_id),
        stages=await journal.stages(session_id),
        calls=await journal.calls(session_id),
        result=await journal.result(session_id),
    )


def _match(wanted: str, session_ids: list[str], paths: RunPaths) -> str | None:
    if wanted in session_ids:
        return wanted
    matches = [session_id for session_id in session_ids if session_id.startswith(wanted)]
    if len(matches) > 1:
        shown = ", ".join(matches[:10]) + (f" and {len(matches) - 10} more" if len(matches) > 10 else "")
        raise PolarError(f"{len(matches)} sessions of run {paths.run_id} begin with {wanted!r}: {shown}")
    return matches[0] if matches else None
