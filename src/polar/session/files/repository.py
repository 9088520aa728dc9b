"""A git repository or bundle on the node, checked out once for all sessions that begin with the same commit.

The checkout has the commit and its ancestors only: no remote, no other branch, no later commit, in which an agent
could find the solution of its task. Only `git upload-pack` reads the source, which git considers safe with an
untrusted repository; its hooks, filters and settings are not copied.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from polar.errors import PolarError
from polar.store.cache import cached_folder

BASE_REF = "refs/polar/base"
SHOWN_REFS = 10
COMMITS_AT_ONCE = 1000
COMMIT_ID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class RepositoryError(PolarError):
    """The repository cannot be read, or does not have the commit."""


class RefCommit(NamedTuple):
    sha: str
    branch: str
    """The branch of the checkout; empty: detached."""


async def checkout_of(source: Path, ref: str) -> Path:
    """A shared folder in the cache; do not change it."""
    origin = await _mirror_of(source) if source.is_file() else source
    commit = await _resolve(source, origin, ref)

    async def fill(folder: Path) -> None:
        await _check_out(origin, commit, folder)

    name = f"{commit.sha[:16]}-{_digest(str(source), commit.sha, commit.branch)}"
    return await cached_folder(f"workspaces/{name}", fill, private=True)


async def check_ref(source: Path, ref: str) -> None:
    """Raises `RepositoryError` if `checkout_of` would not find it."""
    origin = await _mirror_of(source) if source.is_file() else source
    commit = await _resolve(source, origin, ref)
    if await missing_commits(source, [commit.sha]):
        raise RepositoryError(f"{source} has no commit {commit.sha}")


async def missing_commits(source: Path, commits: Sequence[str]) -> set[str]:
    """Those that the repository or bundle does not have."""
    origin = await _mirror_of(source) if source.is_file() else source
    missing: set[str] = set()
    for at in range(0, len(commits), COMMITS_AT_ONCE):
        some = commits[at : at + COMMITS_AT_ONCE]
        found = await _git("-C", str(origin), "cat-file", "--batch-check=%(objecttype)", stdin="\n".join(some))
        kinds = zip(some, found.splitlines(), strict=True)
        missing |= {commit for commit, kind in kinds if kind != "commit"}
    return missing


async def _mirror_of(bundle: Path) -> Path:
    """The bundle as a repository, from which any of its commits can be fetched."""
    found = bundle.stat()

    async def fill(folder: Path) -> None:
        try:
            await _git("clone", "--quiet", "--mirror", "--template=", str(bundle), str(folder))
        except RepositoryError as error:
            raise RepositoryError(f"{bundle} is neither a repository nor a complete bundle: {error}") from error

    name = _digest(str(bundle), str(found.st_size), str(found.st_mtime_ns))
    return await cached_folder(f"bundles/{name}", fill, private=True)


async def _resolve(source: Path, origin: Path, ref: str) -> RefCommit:
    try:
        listed = await _git("ls-remote", "--symref", "--", str(origin))
    except RepositoryError as error:
        raise RepositoryError(
            f"{source} cannot be read as a git repository: {first_reason(str(error))}"
        ) from error
    return commit_of(str(source), listed, ref)


def commit_of(source: str, listed: str, ref: str) -> RefCommit:
    """`listed`: what `git ls-remote --symref` prints. Raises `RepositoryError` if there is no such ref."""
    refs, head = _parsed(listed)
    if COMMIT_ID.fullmatch(ref):
        return RefCommit(ref, "")
    if ref == "HEAD" and "HEAD" in refs:
        return RefCommit(refs["HEAD"], head)
    for full in (ref, f"refs/heads/{ref}", f"refs/tags/{ref}"):
        if full in refs and full != "HEAD":
            is_branch = full.startswith("refs/heads/")
            return RefCommit(refs[full], full.removeprefix("refs/heads/") if is_branch else "")
    names = sorted(re.sub("^refs/(heads|tags)/", "", name) for name in refs if name != "HEAD")
    more = f" and {len(names) - SHOWN_REFS} more" if len(names) > SHOWN_REFS else ""
    known = ", ".join(names[:SHOWN_REFS]) or "nothing"
    raise RepositoryError(
        f"{source} has no ref {ref!r}; give a branch, a tag or a whole commit id. It has: {known}{more}"
    )


def _parsed(listed: str) -> tuple[dict[str, str], str]:
    """The commit of each ref (for an annotated tag, the commit it points to), and the branch of HEAD."""
    refs: dict[str, str] = {}
    head = ""
    for line in listed.splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: refs/heads/") and name == "HEAD":
            head = value.removeprefix("ref: refs/heads/")
        elif not value.startswith("ref: "):
            refs[name.removesuffix("^{}")] = value
    return refs, head


async def _check_out(origin: Path, commit: RefCommit, folder: Path) -> None:
    settings = ("-c", "core.hooksPath=/dev/null", "-c", "core.logAllRefUpdates=false", "-c", "gc.auto=0")
    here = (*settings, "-C", str(folder))
    object_format = "sha256" if len(commit.sha) == 64 else "sha1"
    await _git("init", "--quiet", "--template=", f"--object-format={object_format}", str(folder))
    fetch = ("fetch", "--quiet", "--update-shallow", "--no-recurse-submodules", "--no-write-fetch-head")
    try:
        await _git(*here, *fetch, str(origin), f"{commit.sha}:{BASE_REF}")
        await _git(*here, "rev-parse", "--quiet", "--verify", f"{BASE_REF}^{{commit}}")
    except RepositoryError as error:
        raise RepositoryError(
            f"cannot fetch commit {commit.sha} from {origin}: {first_reason(str(error))}"
        ) from error
    on_branch = ("-B", commit.branch) if commit.branch else ("--detach",)
    await _git(*here, "checkout", "--quiet", "--no-recurse-submodules", *on_branch, BASE_REF)
    await _git(*here, "update-ref", "-d", BASE_REF)


async def _git(*arguments: str, stdin: str = "") -> str:
    """What git prints. It reads no other settings than these, and has access to local files only."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    return await run_git(*arguments, environment=environment, stdin=stdin)


async def run_git(*arguments: str, environment: Mapping[str, str], stdin: str = "") -> str:
    """What git prints; `RepositoryError` has its message."""
    try:
        process = await asyncio.create_subprocess_exec(
            *("git", *arguments),
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that its child processes can be killed with it
        )
    except FileNotFoundError as error:
        raise RepositoryError("git is needed on this machine, but it is not on PATH: install it") from error
    try:
        output, errors = await process.communicate(stdin.encode() or None)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode != 0:
        raise RepositoryError(errors.decode(errors="replace").strip() or f"git {arguments[0]} failed")
    return output.decode(errors="replace")


def first_reason(errors: str) -> str:
    """The first line of git's message is the cause; the rest is advice about remotes."""
    first = errors.partition("\n")[0].removeprefix("fatal: ")
    if "dubious ownership" in first:
        return f"{first}; change its owner to the user of the node, or make a bundle of it"
    return first


def _digest(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
