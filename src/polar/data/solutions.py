"""The solutions that a task set brings, for checking its tasks. They are in the set's files, never in a task.

Harbor folders have `solution/solve.sh`, SWE rows a gold patch. For other tasks a folder holds `<task id>.sh` or
`<task id>.patch`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from polar.data.git_sets import local_path
from polar.data.row_files import raw_rows
from polar.data.swe.row import SweRow
from polar.data.swe.table import SweTable
from polar.errors import ConfigError
from polar.types import TaskRequest

GOLD = "gold.patch"
# Git must not find a repository: within one, it leaves out files that are not below its top folder.
APPLY = f"""
export GIT_DIR=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
git apply --binary --whitespace=nowarn $2 "$1/{GOLD}" || patch --batch $2 -p1 --unified --input="$1/{GOLD}"
"""
SOLVE = """
[ -z "$3" ] || ln -s "$1" /solution 2>/dev/null
if command -v bash >/dev/null; then bash "$1/solve.sh"; else sh "$1/solve.sh"; fi
"""


class Solution(NamedTuple):
    """What turns the initial workspace into one that earns everything."""

    script: str
    """For `sh -c` in the workspace. Its first argument is a folder with `files`, the second is `argument`, the
    third is empty unless the runtime has a file system of its own."""
    files: Mapping[str, bytes]
    argument: str = ""

    @classmethod
    def of_patch(cls, patch: str, *, reverse: bool = False) -> Solution:
        text = patch if patch.endswith("\n") else f"{patch}\n"
        return cls(APPLY, {GOLD: text.encode()}, "-R" if reverse else "")

    @classmethod
    def of_script(cls, files: Mapping[str, bytes]) -> Solution:
        """`files` has a `solve.sh`."""
        return cls(SOLVE, files)


def solutions_of(path: Path, tasks: Sequence[TaskRequest], folder: Path | None = None) -> dict[str, Solution]:
    """Task id to its solution, for tasks of the task file `path` that have one. `folder`: with solutions by task
    id, which come before the set's own."""
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--solutions {folder}: not a folder")
    rows = _rows(local_path(path), {str(task.evaluator.options.get("instance_id")) for task in tasks})
    found = {str(task.task_id): _given(folder, task) or _of_set(task, rows) for task in tasks}
    return {task_id: solution for task_id, solution in found.items() if solution is not None}


def _given(folder: Path | None, task: TaskRequest) -> Solution | None:
    if folder is None:
        return None
    script, patch = folder / f"{task.task_id}.sh", folder / f"{task.task_id}.patch"
    if script.is_file():
        return Solution.of_script({"solve.sh": script.read_bytes()})
    return Solution.of_patch(patch.read_text(encoding="utf-8")) if patch.is_file() else None


def _of_set(task: TaskRequest, rows: Mapping[str, SweRow]) -> Solution | None:
    options = task.evaluator.options
    if task.evaluator.name == "harbor" and "folder" in options:
        return _of_folder(Path(str(options["folder"])) / "solution")
    row = rows.get(str(options.get("instance_id", ""))) if task.evaluator.name == "swe_bench" else None
    return Solution.of_patch(row.patch, reverse=row.has_bug_patch) if row is not None and row.patch else None


def _of_folder(folder: Path) -> Solution | None:
    if not (folder / "solve.sh").is_file():
        return None
    plain = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return Solution.of_script({path.relative_to(folder).as_posix(): path.read_bytes() for path in plain})


def _rows(path: Path, wanted: Collection[str]) -> dict[str, SweRow]:
    """By instance id, of the table [swe], if the file has one. Rows that are no rows were left out when the tasks
    were read."""
    if path.suffix != ".toml":
        return {}
    table: Any = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("swe")
    if not isinstance(table, dict):
        return {}
    options = SweTable.model_validate(cast("dict[str, Any]", table))
    found: dict[str, SweRow] = {}
    for name in options.row_files:
        for raw in raw_rows(path.absolute().parent / name, options.split):
            try:
                row = SweRow.model_validate(raw.value)
            except ValidationError:
                continue
            if row.instance_id in wanted:
                found.setdefault(row.instance_id, row)
    return found
