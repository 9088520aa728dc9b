"""Task sets in git repositories: `git+https://host/owner/name@rev#folder`.

A set is fetched once for each commit, without its history, into the cache. Submodules and Git LFS are not fetched.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from polar.data.row_files import NO_ROWS
from polar.errors import ConfigError
from polar.runtimes.host.threads import in_loop
from polar.session.files.repository import COMMIT_ID, RepositoryError, commit_of, first_reason, run_git
from polar.store.cache import cached_folder

# Of a `Path`, which joins neighbouring slashes, one is left.
ADDRESS = re.compile(r"git\+(?P<scheme>[a-z]+):/+(?P<place>[^#]*)(?:#(?P<inside>.*))?")
SCHEMES = ("https", "ssh", "file")
TASK_FILES = (".toml", ".jsonl", ".ndjson", ".json", ".parquet")
NO_TASKS = {*NO_ROWS, "pyproject.toml", "polar.toml", "package.json", "package-lock.json", "Cargo.toml"}
SHOWN_FILES = 10


class GitSet(NamedTuple):
    path: Path
    """A task file or folder in the cache."""
    origin: str
    """The address with the commit, without a password."""


class GitAddress(NamedTuple):
    url: str
    rev: str
    inside: str
    """A folder or file in the repository; empty: its top."""

    @classmethod
    def parse(cls, text: str) -> GitAddress:
        found = ADDRESS.fullmatch(text)
        if found is None or found["scheme"] not in SCHEMES or not found["place"]:
            known = " or ".join(f"git+{scheme}://" for scheme in SCHEMES)
            raise ConfigError(
                f"{text}: the address of a set begins with {known}, and ends with @REV#FOLDER if wanted"
            )
        host, slash, path = (
            ("", "/", found["place"]) if found["scheme"] == "file" else found["place"].partition("/")
        )
        name, at, rev = path.rpartition("@")
        name, rev = (name, rev) if at else (path, "HEAD")
        return cls(f"{found['scheme']}://{host}{slash}{name}", rev, (found["inside"] or "").strip("/"))

    @property
    def shown(self) -> str:
        """Without user and password."""
        return "git+" + re.sub("//[^/]*@", "//", self.url)


def is_git_address(source: str | Path) -> bool:
    return str(source).startswith("git+")


def local_path(source: Path) -> Path:
    """Where the files of a set are on this machine."""
    return fetched(source).path if is_git_address(source) else source


def fetched(source: str | Path) -> GitSet:
    """Raises `ConfigError` if the set cannot be fetched, or it is not clear which file is meant."""
    address = GitAddress.parse(str(source))
    try:
        commit, folder = in_loop(lambda: _checkout(address))
    except RepositoryError as error:
        raise ConfigError(f"{address.shown}: {error}") from error
    top = folder.resolve()
    place = (top / address.inside).resolve()
    if not place.is_relative_to(top) or not place.exists():
        raise ConfigError(f"{address.shown}: there is no {address.inside!r} at commit {commit}")
    inside = f"#{address.inside}" if address.inside else ""
    return GitSet(_set_in(place, f"{address.shown}@{commit}{inside}"), f"{address.shown}@{commit}{inside}")


async def _checkout(address: GitAddress) -> tuple[str, Path]:
    """The commit, and its files in the cache."""
    commit = address.rev
    if not COMMIT_ID.fullmatch(commit):
        commit = commit_of("the repository", await _git("ls-remote", "--symref", "--", address.url), commit).sha

    async def fill(folder: Path) -> None:
        await _fetch(address.url, commit, folder)

    digest = hashlib.sha256(address.url.encode()).hexdigest()[:16]
    return commit, await cached_folder(f"task-sets/{digest}-{commit}", fill, private=True)


async def _fetch(url: str, commit: str, folder: Path) -> None:
    here = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-C", str(folder))
    object_format = "sha256" if len(commit) == 64 else "sha1"
    await _git("init", "--quiet", "--template=", f"--object-format={object_format}", str(folder))
    fetch = (*here, "fetch", "--quiet", "--no-recurse-submodules", "--no-write-fetch-head")
    try:
        await _git(*fetch, "--depth=1", url, commit)
    except RepositoryError:  # many servers give no commit that is not the newest of a branch or tag
        await _git(*fetch, url, "+refs/heads/*:refs/set/heads/*", "+refs/tags/*:refs/set/tags/*")
    try:
        await _git(*here, "checkout", "--quiet", "--detach", commit)
    except RepositoryError as error:
        raise RepositoryError(f"it has no commit {commit} on a branch or tag") from error
    shutil.rmtree(folder / ".git")


async def _git(*arguments: str) -> str:
    """With the user's settings, which may have credentials; it never asks for any."""
    own = {"GIT_ALLOW_PROTOCOL": ":".join(SCHEMES), "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    try:
        return await run_git(*arguments, environment={**os.environ, **own})
    except RepositoryError as error:
        raise RepositoryError(first_reason(str(error))) from error


def _set_in(place: Path, shown: str) -> Path:
    """The task file in a folder; the folder itself, if it has no task file at its top but may have rows below."""
    if place.is_file():
        return place
    files = [path for path in sorted(place.iterdir()) if path.is_file() and _may_hold_tasks(path)]
    named = [path for path in files if path.stem == "tasks"]
    if len(named or files) == 1:
        return (named or files)[0]
    if not files or all(path.suffix == ".parquet" for path in files):
        return place
    names = ", ".join(path.name for path in files[:SHOWN_FILES])
    raise ConfigError(f"{shown}: which of its files is the task file? Write it behind the #: {names}")


def _may_hold_tasks(path: Path) -> bool:
    return path.suffix in TASK_FILES and path.name not in NO_TASKS and not path.name.startswith(".")
