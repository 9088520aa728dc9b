"""The bugs of the task set, as they are stored: a repository without bugs, and one TOML file for each bug.

A bug is a list of texts in the repository and what stands there instead. Its fix is the way back.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWNER = "polar-examples"
FIELDS = {"kind", "created_at", "statement", "fails", "tests", "changes"}
LEFT_OUT = ("__pycache__", ".pytest_cache", ".ruff_cache")

Files = dict[str, str]
"""Path in the repository to text."""


class BugError(Exception):
    """A bug's file or its repository is not as it has to be."""


@dataclass(frozen=True)
class Repository:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def files(self) -> Files:
        """The correct state."""
        root = self.folder / "repository"
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        kept = [path for path in paths if not set(LEFT_OUT) & set(path.parts)]
        return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in kept}

    @cached_property
    def version(self) -> str:
        return tomllib.loads(self.files["pyproject.toml"])["project"]["version"]

    @cached_property
    def test_ids(self) -> list[str]:
        """Ids of the tests that the agent sees."""
        tests = {path: text for path, text in self.files.items() if Path(path).name.startswith("test_")}
        return [f"{path}::{name}" for path, text in tests.items() for name in test_names(text)]

    def bugs(self) -> list[Bug]:
        return [read_bug(self, path) for path in sorted((self.folder / "bugs").glob("*.toml"))]


@dataclass(frozen=True)
class Change:
    file: str
    right: str
    """A text that occurs once in the correct file, of whole lines."""
    wrong: str


@dataclass(frozen=True)
class Bug:
    repository: Repository
    name: str
    kind: str
    created_at: str
    statement: str
    """What a user reports."""
    fails: tuple[str, ...]
    """Tests in `tests` that fail with the bug; the others pass with it and without it."""
    tests: str
    """A module of tests that the agent does not see."""
    changes: tuple[Change, ...]

    @property
    def instance_id(self) -> str:
        return f"{OWNER}__{self.repository.name}-{self.name}"

    @property
    def test_path(self) -> str:
        return f"tests/test_{self.name.replace('-', '_')}.py"

    @property
    def broken(self) -> Files:
        """The repository with the bug."""
        files = dict(self.repository.files)
        for change in self.changes:
            files[change.file] = files[change.file].replace(change.right, change.wrong)
        return files

    @property
    def fail_to_pass(self) -> list[str]:
        return [f"{self.test_path}::{name}" for name in self.fails]

    @property
    def pass_to_pass(self) -> list[str]:
        others = [name for name in test_names(self.tests) if name not in self.fails]
        return [*self.repository.test_ids, *(f"{self.test_path}::{name}" for name in others)]


def repositories() -> list[Repository]:
    return [Repository(path.parent) for path in sorted(HERE.glob("*/repository"))]


def all_bugs() -> list[Bug]:
    return [bug for repository in repositories() for bug in repository.bugs()]


def read_bug(repository: Repository, path: Path) -> Bug:
    """Raises `BugError` with the file's name."""
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        if table.keys() != FIELDS:
            raise BugError(f"its fields are {sorted(table)}, not {sorted(FIELDS)}")
        changes = tuple(Change(**change) for change in table.pop("changes"))
        texts = {name: table.pop(name).lstrip("\n") for name in ("statement", "tests")}
        bug = Bug(repository, path.stem, fails=tuple(table.pop("fails")), changes=changes, **texts, **table)
        for problem in _problems(bug):
            raise BugError(problem)
    except (BugError, TypeError, ValueError, SyntaxError) as error:
        raise BugError(f"{path}: {error}") from error
    return bug


def _problems(bug: Bug) -> Iterator[str]:
    names = test_names(bug.tests)
    yield from (f"`fails` has {name!r}, which is no test of `tests`" for name in bug.fails if name not in names)
    if not bug.fails:
        yield "`fails` is empty"
    for change in bug.changes:
        count = bug.repository.files.get(change.file, "").count(change.right)
        if count != 1:
            yield f"`right` of a change occurs {count} times in {change.file}, not once"


def test_names(text: str) -> list[str]:
    """The tests of a module. All are plain functions, so that their ids are known without running them."""
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]
