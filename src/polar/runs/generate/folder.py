"""The folder of a generation: its run, its state, its data sets and its card.

```
<out>/
  README.md, card.json     the data card
  sft/train/, sft/test/    conversations, each as `polar export` writes them
  tokens/train/, ...       the same sessions as token ids and labels
  generate.json            what the folder is for; the next `polar generate` continues from it
  runs/<run_id>/           all sessions, confirmed or not
```
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from polar.errors import PolarError
from polar.store.paths import RunPaths, new_run_id, write_whole
from polar.store.private import private_folder
from polar.types import Id, Strict

STATE = "generate.json"
LOCK = "generate.lock"
CARD = "card.json"
PAGE = "README.md"


class GenerateState(Strict):
    """The content of `generate.json`. The journal of the run has the rest."""

    run_id: Id
    tasks: str
    """The task file that the first run was given."""


class GenerateFolder:
    def __init__(self, out: Path) -> None:
        self.out = out.absolute()

    @property
    def exists(self) -> bool:
        return (self.out / STATE).is_file()

    @contextmanager
    def open(self, tasks: Path) -> Generator[RunPaths]:
        """Makes the folder or continues it; refuses another process meanwhile."""
        if self.out.exists() and not self.exists and any(self._content()):
            raise PolarError(f"{self.out} exists and is not of `polar generate`; choose another --out")
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with (self.out / LOCK).open("w") as lock:
                self._take(lock.fileno())
                yield self._run(tasks)
        except OSError as error:
            raise PolarError(f"cannot write {self.out}: {error.strerror}") from error

    def _content(self) -> Iterator[Path]:
        if not self.out.is_dir():
            raise PolarError(f"{self.out} is not a folder; choose another --out")
        return (path for path in self.out.iterdir() if path.name != LOCK)

    def _take(self, lock: int) -> None:
        """The system frees it with the process, however that ends."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PolarError(f"another `polar generate` works in {self.out}; wait until it has ended") from error

    def _run(self, tasks: Path) -> RunPaths:
        if not self.exists:
            state = GenerateState(run_id=new_run_id(), tasks=str(tasks))
            write_whole(self.out / STATE, state.model_dump_json(indent=2).encode() + b"\n")
        paths = RunPaths(self.out / "runs" / self._state().run_id)
        private_folder(paths.root)
        return paths

    def _state(self) -> GenerateState:
        try:
            return GenerateState.model_validate_json((self.out / STATE).read_bytes())
        except ValidationError as error:
            raise PolarError(f"{self.out / STATE} is damaged or of another version of Polar") from error
