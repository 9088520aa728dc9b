"""Git repositories of the bugs: the same commit ids on any machine, and no trace of a fix or of hidden tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from swe_bugs import Bug, Files

AUTHOR = "Robin Example <robin@example.com>"
FIRST_FILES = ("README.md", "pyproject.toml")
SETTINGS = ("-c", "pack.threads=1", "-c", "core.autocrlf=false", "-c", "core.logAllRefUpdates=false")


def git(folder: Path, *words: str, given: bytes = b"") -> str:
    """Runs git without the settings of this machine's user."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(["git", *SETTINGS, *words], cwd=folder, env=env, input=given, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"git {words[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


@contextmanager
def git_of(bugs: Mapping[str, Bug]) -> Iterator[Path]:
    """A bare repository with a branch for each bug. Its history has the bug from the beginning, and no commit in
    common with another bug's."""
    with tempfile.TemporaryDirectory(prefix="swe-set-") as folder:
        path = Path(folder)
        git(path, "init", "--quiet", "--bare", "--initial-branch=main", ".")
        git(path, "fast-import", "--quiet", given=b"".join(_history(branch, bug) for branch, bug in bugs.items()))
        yield path


def _history(branch: str, bug: Bug) -> bytes:
    files = bug.broken
    first = {path: text for path, text in files.items() if path in FIRST_FILES}
    tests = {path: text for path, text in files.items() if path.startswith("tests/")}
    library = {path: text for path, text in files.items() if path not in first.keys() | tests.keys()}
    end = datetime.fromisoformat(bug.created_at).astimezone(UTC)
    steps = ((f"Begin {bug.repository.name}", first), ("Add the library", library), ("Add tests", tests))
    commits = [
        _commit(branch, subject, end - timedelta(days=9 - 3 * number), new)
        for number, (subject, new) in enumerate(steps)
    ]
    return b"".join(commits)


def _commit(branch: str, subject: str, when: datetime, new: Files, after: str = "") -> bytes:
    """A commit of a `git fast-import` stream, after the one before it on its branch, or after another branch."""
    stamp = f"{AUTHOR} {int(when.timestamp())} +0000"
    head = f"commit refs/heads/{branch}\nauthor {stamp}\ncommitter {stamp}\n".encode() + _data(subject + "\n")
    files = (f"M 100644 inline {path}\n".encode() + _data(text) for path, text in new.items())
    parent = f"from refs/heads/{after}^0\n".encode() if after else b""
    return head + parent + b"".join(files) + b"\n"


def _data(text: str) -> bytes:
    content = text.encode()
    return f"data {len(content)}\n".encode() + content + b"\n"


def commit_of(repository: Path, branch: str) -> str:
    return git(repository, "rev-parse", f"refs/heads/{branch}").strip()


def write_bundle(repository: Path, target: Path, *refs: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    git(repository, "bundle", "create", "--quiet", str(target.absolute()), *refs)


def write_checkout(bug: Bug, folder: Path) -> None:
    """A work tree on the branch `main`, with the bug and its history."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--template=", "--initial-branch=main", ".")
    git(folder, "fast-import", "--quiet", given=_history("main", bug))
    git(folder, "read-tree", "main")  # without the times of the files, which differ each time
    for name, text in bug.broken.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Patches:
    gold: str
    """The fix."""
    tests: str
    """Adds the hidden tests."""


def patches_of(repository: Path, branch: str, bug: Bug) -> Patches:
    """What `git diff` prints from the bug to its fix, and to its hidden tests. Adds branches to the repository."""
    fixed = {change.file: bug.repository.files[change.file] for change in bug.changes}
    when = datetime.fromisoformat(bug.created_at).astimezone(UTC)
    added = {"fixed": fixed, "tested": {bug.test_path: bug.tests}}
    commits = (_commit(f"{word}/{branch}", word, when, new, branch) for word, new in added.items())
    git(repository, "fast-import", "--quiet", given=b"".join(commits))
    gold, tests = (
        git(repository, "diff", "--no-color", "--abbrev=7", branch, f"{word}/{branch}") for word in added
    )
    return Patches(gold, tests)
