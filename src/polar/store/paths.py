"""The files of a run, and how to find a run."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from polar.config import Config
from polar.errors import PolarError, first_problem
from polar.store.private import FILE, FOLDER, private_folder
from polar.types import Id, Strict, is_id

RUN_TIME = re.compile(r"\d{8}-\d{6}")
"""In the id of a run."""


class RunNotFound(PolarError):
    """No run by that name, or more than one."""


class RunRecord(Strict):
    """The content of `run.json`: enough to read the run on another machine."""

    run_id: Id
    config: Config
    versions: dict[str, str]
    """Of Polar, the model and the harnesses."""
    tasks: int = 0
    task_set: str = ""
    """Of tasks from a git repository: its address with the commit."""
    sessions: int | None = None
    """Number in the journal at the end. None: the run is live, was killed, or is a node of a server."""
    started: float
    """Unix seconds, as `finished`."""
    finished: float | None = None
    """None while the run is live, or if it was killed."""
    interrupted: bool = False
    """It ended before its last session did, by Ctrl-C or an error."""


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
    def evaluator_place(self) -> Path:
        """Workspace and home of the evaluator's own runtime."""
        return self.root / "evaluator-place"

    @property
    def evaluator_logs(self) -> Path:
        """Output of the evaluator's own runtime, and what the evaluator keeps. Absolute, because its programs
        have other working folders."""
        return (self.logs / "evaluator").absolute()

    @property
    def artifacts(self) -> Path:
        """Files of the workspace that the task keeps; missing if there are none."""
        return self.root / "artifacts"

    @property
    def patch(self) -> Path:
        return self.root / "patch.diff"

    @property
    def traces(self) -> Path:
        return self.root / "traces.msgpack"

    def create(self) -> SessionPaths:
        """Makes the folder and its `logs/`. The runtime makes and removes `place/`."""
        private_folder(self.logs)
        return self


@dataclass(frozen=True)
class RunPaths:
    """The layout of one run.

    ```
    <runs_dir>/<run_id>/
      run.json                 config, versions, task count, started, finished
      tasks.jsonl              the tasks, one per line; `polar run --resume` reads them
      owner                    the process that works here, removed at a clean end
      journal.db               sessions, stages, calls, results (SQLite)
      sessions/<session_id>/
        place/                 the runtime's workspace and home, removed after the session
        evaluator-place/       the same of an evaluator's own runtime
        logs/                  output of the harness and the runtime
        artifacts/             files of the workspace that the task keeps
        patch.diff             changes in the workspace, if the task keeps them
        traces.msgpack         the trajectory
      warm/<number>/           runtimes that wait for a session, removed at the end
      rescores/<id>/           scores that other evaluators gave later, and their logs
    ```
    """

    root: Path

    @classmethod
    def create(cls, runs_dir: Path, run_id: str | None = None) -> RunPaths:
        """A new run's folder. A given `run_id` must be new."""
        root = runs_dir / _checked(run_id or new_run_id())
        try:
            private_folder(runs_dir)
            root.mkdir(mode=FOLDER)
        except FileExistsError as error:
            raise PolarError(f"a run at {root} already exists; choose another id") from error
        except OSError as error:
            raise PolarError(f"cannot create {root}: {error.strerror}") from error
        return cls(root)

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def record(self) -> Path:
        return self.root / "run.json"

    @property
    def tasks(self) -> Path:
        """The tasks of the run, one per line; missing in a node's run."""
        return self.root / "tasks.jsonl"

    @property
    def owner(self) -> Path:
        """Exists while a node works in the run, and after it if the node was killed."""
        return self.root / "owner"

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    @property
    def warm(self) -> Path:
        """Folders of runtimes that were started ahead."""
        return self.root / "warm"

    @property
    def rescores(self) -> Path:
        """Each folder in it has the layout of a run."""
        return self.root / "rescores"

    @property
    def scores(self) -> Path:
        """Of a folder in `rescores`: one score per line."""
        return self.root / "scores.jsonl"

    def session(self, session_id: str) -> SessionPaths:
        return SessionPaths(self.sessions / _checked(session_id))

    def write_record(self, record: RunRecord) -> None:
        write_whole(self.record, record.model_dump_json(indent=2).encode())

    def read_record(self) -> RunRecord:
        try:
            return RunRecord.model_validate_json(self.record.read_bytes())
        except OSError as error:
            raise PolarError(f"cannot read {self.record}: {error.strerror}") from error
        except ValidationError as error:
            problem = first_problem(error, "run.json")
            raise PolarError(f"{self.record} is not of this version of Polar: {problem}") from error


def new_run_id(at: float | None = None) -> str:
    """UTC time, and four random characters for runs of the same second. Sorts by time."""
    return f"{_time_of(at)}-{secrets.token_hex(2)}"


def _time_of(at: float | None) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(at))


def list_runs(runs_dir: Path) -> list[RunPaths]:
    """The runs of a folder, oldest first. Folders without `run.json` are skipped."""
    if not runs_dir.is_dir():
        return []
    folders = (path for path in runs_dir.iterdir() if is_id(path.name) and (path / "run.json").is_file())
    return [RunPaths(path) for path in sorted(folders, key=_begun)]


def _begun(folder: Path) -> tuple[str, str]:
    """When a run began, by its id; a name that somebody chose says nothing, so by its record. Then its name."""
    made = RUN_TIME.search(folder.name)
    at = made[0] if made else _time_of((folder / "run.json").stat().st_mtime)
    return at, folder.name


def find_run(runs_dir: Path, which: str | None = None) -> RunPaths:
    """A run by its id or a unique prefix of it; without one, the latest."""
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


def write_whole(path: Path, data: bytes, *, private: bool = True) -> None:
    """Replaces a file atomically. Not `private`: the umask decides who may read it."""
    write_parts(path, (data,), private=private)


def write_parts(path: Path, parts: Iterable[bytes], *, private: bool = True) -> None:
    """The same for content that is made piece by piece, which may come from the file itself."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE if private else 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def _checked(text: str) -> str:
    if not is_id(text):
        raise PolarError(
            f"{text!r} is not a valid id: letters, digits, '.', '_' and '-', a letter or digit first, at most 128"
        )
    return text


def _some_of(names: Iterable[str], shown: int = 10) -> str:
    """The newest few."""
    known = list(names)
    more = len(known) - shown
    return ", ".join(known[-shown:]) + (f" and {more} older" if more > 0 else "")
