"""Git repositories of the bugs: the same commit ids on any machine, and no trace of a fix or of hidden tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from swe_bugs import Bug, Files

AUTHOR = "Robin Example <robin@example.com>"
FIRST_FILES = ("README.md", "pyproject.toml")
SETTINGS = ("-c", "pack.threads=1", "-c", "core.autocrlf=false", "-c", "diff.noprefix=false")


def git(folder: Path, *words: str, given: bytes = b"") -> str:
    """Runs git without the settings of this machine's user."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(["git", *SETTINGS, *words], cwd=folder, env=env, input=given, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"git {words[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


@contextmanager
def git_of(bug: Bug) -> Iterator[Path]:
    """A bare repository whose branch `main` ends with the bug. Its history has the bug from the beginning."""
    with tempfile.TemporaryDirectory(prefix="swe-set-") as folder:
        path = Path(folder)
        git(path, "init", "--quiet", "--bare", "--initial-branch=main", ".")
        git(path, "fast-import", "--quiet", given=_history(bug))
        yield path


def _history(bug: Bug) -> bytes:
    files = bug.broken
    first = {path: text for path, text in files.items() if path in FIRST_FILES}
    tests = {path: text for path, text in files.items() if path.startswith("tests/")}
    library = {path: text for path, text in files.items() if path not in first.keys() | tests.keys()}
    end = datetime.fromisoformat(bug.created_at).astimezone(UTC)
    steps = ((f"Begin {bug.repository.name}", first), ("Add the library", library), ("Add tests", tests))
    commits = [
        _commit(subject, end - timedelta(days=9 - 3 * number), new) for number, (subject, new) in enumerate(steps)
    ]
    return b"".join(commits)


def _commit(subject: str, when: datetime, new: Files) -> bytes:
    """A commit of a `git fast-import` stream; it follows the one before."""
    stamp = f"{AUTHOR} {int(when.timestamp())} +0000"
    head = f"commit refs/heads/main\nauthor {stamp}\ncommitter {stamp}\n".encode() + _data(subject + "\n")
    files = (f"M 100644 inline {path}\n".encode() + _data(text) for path, text in new.items())
    return head + b"".join(files) + b"\n"


def _data(text: str) -> bytes:
    content = text.encode()
    return f"data {len(content)}\n".encode() + content + b"\n"


def base_commit(repository: Path) -> str:
    return git(repository, "rev-parse", "main").strip()


def write_bundle(repository: Path, target: Path) -> None:
    git(repository, "bundle", "create", "--quiet", str(target.absolute()), "HEAD", "main")


def patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What `git diff` prints between two states."""
    with tempfile.TemporaryDirectory(prefix="swe-set-") as folder:
        path = Path(folder)
        git(path, "init", "--quiet", ".")
        _lay(path, before)
        git(path, "add", ".")
        _lay(path, after)
        git(path, "add", "--intent-to-add", ".")
        return git(path, "diff", "--no-color", "--abbrev=7")


def _lay(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
