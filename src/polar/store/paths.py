"""The files of a run: where each stands, and how a run is found again."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from polar.config import Config
from polar.errors import PolarError
from polar.types import Id, Strict, is_id


class RunNotFound(PolarError):
    """No run by that name, or more than one."""


class RunRecord(Strict):
    """What `run.json` holds: enough to read the run again without the machine it ran on."""

    run_id: Id
    config: Config
    versions: dict[str, str]
    """Of Polar, the model, the harnesses: whatever a number of this run may depend on."""
    tasks: int = 0
    sessions: int | None = None
    """How many the journal lists at the end. None: the run is live, was killed, or is a node's of a server."""
    started: float
    """Unix seconds, as `finished`."""
    finished: float | None = None
    """None while the run is live, and for ever if it was killed."""


@dataclass(frozen=True)
class SessionPaths:
    """The files of one session."""

    root: Path

    @property
    def place(self) -> Path:
        """The runtime's workspace and home."""
        return self.root / "place"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def artifacts(self) -> Path:
        """What the task wanted kept of the workspace; there only where there is something."""
        return self.root / "artifacts"

    @property
    def patch(self) -> Path:
        return self.root / "patch.diff"

    @property
    def traces(self) -> Path:
        return self.root / "traces.msgpack"

    def create(self) -> SessionPaths:
        """Makes the folder and its `logs/`; `place/` belongs to the runtime, which makes and removes it."""
        self.logs.mkdir(parents=True, exist_ok=True)
        return self


@dataclass(frozen=True)
class RunPaths:
    """The layout of one run.

    ```
    <runs_dir>/<run_id>/
      run.json                 config, versions, task count, started, finished
      owner                    the process that works here, gone with a clean end
      journal.db               sessions, stages, calls, results (SQLite)
      sessions/<session_id>/
        place/                 the runtime's work and home, gone after the session
        logs/                  what the harness and the runtime wrote
        artifacts/             files of the workspace that the task wanted kept
        patch.diff             what changed in the workspace, where the task wanted it
        traces.msgpack         the trajectory
    ```
    """

    root: Path

    @classmethod
    def create(cls, runs_dir: Path, run_id: str | None = None) -> RunPaths:
        """A new run's folder. An id given by hand must be new, and sorts as it is spelled."""
        root = runs_dir / _checked(run_id or new_run_id())
        try:
            root.mkdir(parents=True)
        except FileExistsError as error:
            raise PolarError(f"there is already a run at {root}; choose another id") from error
        except OSError as error:
            raise PolarError(f"{root} cannot be made: {error.strerror}") from error
        return cls(root)

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def record(self) -> Path:
        return self.root / "run.json"

    @property
    def owner(self) -> Path:
        """There while a node works in the run, and after it if it was killed."""
        return self.root / "owner"

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    def session(self, session_id: str) -> SessionPaths:
        return SessionPaths(self.sessions / _checked(session_id))

    def write_record(self, record: RunRecord) -> None:
        write_whole(self.record, record.model_dump_json(indent=2).encode())

    def read_record(self) -> RunRecord:
        try:
            return RunRecord.model_validate_json(self.record.read_bytes())
        except OSError as error:
            raise PolarError(f"{self.record} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "run.json"
            raise PolarError(f"{self.record} is not of this version of Polar: {where}: {first['msg']}") from error


def new_run_id(at: float | None = None) -> str:
    """UTC time to the second, then four characters against a second run in it: sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{secrets.token_hex(2)}"


def list_runs(runs_dir: Path) -> list[RunPaths]:
    """The runs of a folder, oldest first. A folder without `run.json` is none of ours."""
    if not runs_dir.is_dir():
        return []
    folders = sorted(path for path in runs_dir.iterdir() if is_id(path.name))
    return [RunPaths(path) for path in folders if (path / "run.json").is_file()]


def find_run(runs_dir: Path, which: str | None = None) -> RunPaths:
    """A run by its id or the unique beginning of it; without one, the latest."""
    runs = list_runs(runs_dir)
    if not runs:
        raise RunNotFound(f"no runs in {runs_dir}; `polar run` starts one, --runs-dir looks elsewhere")
    if which is None:
        return runs[-1]
    exact = [run for run in runs if run.run_id == which]
    matches = exact or [run for run in runs if run.run_id.startswith(which)]
    if len(matches) != 1:
        problem = f"{len(matches)} runs begin with {which!r}" if matches else f"no run {which!r} in {runs_dir}"
        raise RunNotFound(f"{problem}; there are: {_some_of(run.run_id for run in matches or runs)}")
    return matches[0]


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that is either all there or as it was before, whatever dies in between."""
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def _checked(text: str) -> str:
    if not is_id(text):
        raise PolarError(
            f"{text!r} cannot be an id: letters, digits, '.', '_' and '-', a letter or digit first, at most 128"
        )
    return text


def _some_of(names: Iterable[str], shown: int = 10) -> str:
    """The newest few."""
    known = list(names)
    more = len(known) - shown
    return ", ".join(known[-shown:]) + (f" and {more} older" if more > 0 else "")
