"""Lays the agent's work over the base: what it changed in its workspace, in a runtime in which it never was.

Both workspaces are copied to the node, where only plain files and links that stay inside arrive, and compared
there: no program that the agent may have replaced takes part. What is not work stays as the base has it.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import msgspec

from polar.errors import EvaluatorError, WorkspaceUnusable
from polar.evaluators.base import Evidence
from polar.evaluators.hardening.protected import Kind, WorkChange, WorkRules, kind_of
from polar.runtimes.base import Command, Fetched, Runtime
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread, to_the_end

CAP_BYTES = 4 * 2**30
"""Of a workspace."""
HandedIn = Callable[[Path], Awaitable[None]]
"""Changes a copy of the base into what the agent handed in."""
CHUNK = 200
"""Paths in one command."""
REMOVE = """while [ "$#" -gt 0 ] && [ "$1" != / ]; do rm -rf -- "./$1" || exit 1; shift; done; shift
for folder do rmdir -- "./$folder" 2>/dev/null; done; exit 0"""
"""Removes the paths before `/` in its arguments, and the folders after it if they are empty. Fails if a path
cannot be removed, which another user may own: the work would not be what the agent left."""


class LaidWork(msgspec.Struct, frozen=True):
    """What became of the agent's changes, by path."""

    work: tuple[str, ...] = ()
    tampering: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Tests that the agent changed; the task's own are used."""
    ignored: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """`path: why` of what cannot be copied."""

    def reasons(self) -> tuple[str, ...]:
        """Why the score is 0, if there was tampering."""
        return tuple(f"tampering: the agent changed {path}, which is the task's" for path in self.tampering[:20])

    def notes(self) -> tuple[str, ...]:
        return tuple(f"the agent changed {path}: the task's own was used" for path in self.restored[:20])

    def text(self) -> str:
        """For a log."""
        fields = msgspec.structs.asdict(self).items()
        return "".join(f"{name}: {path}\n" for name, paths in fields for path in paths)


async def lay_work(evidence: Evidence, rules: WorkRules, cap_bytes: int = CAP_BYTES) -> LaidWork:
    """Makes the own runtime's workspace what the agent left, except for what is the task's. If there was
    tampering, nothing is laid. Raises `WorkspaceUnusable` if the agent left no workspace that can be copied."""
    async with compared_work(evidence, rules, cap_bytes) as work:
        if not work.laid.tampering:
            await _lay(own_runtime(evidence), work)
        return work.laid


class ComparedWork(msgspec.Struct, frozen=True):
    """What the agent changed, and copies of it on the node."""

    laid: LaidWork
    removed: tuple[str, ...]
    """Paths of the work that the base has: changed or removed."""
    empty: tuple[str, ...]
    """Folders that the agent removed, the deepest first."""
    base: Path
    """The task's own workspace."""
    work: Path
    """The agent's work alone."""


@asynccontextmanager
async def compared_work(
    evidence: Evidence, rules: WorkRules, cap_bytes: int = CAP_BYTES, *, handed_in: HandedIn | None = None
) -> AsyncGenerator[ComparedWork]:
    """Copies both workspaces to the node and compares them; the copies go with the context. `handed_in` makes the
    agent's workspace from a copy of the base instead."""
    own = own_runtime(evidence)
    if evidence.logs is not None:
        evidence.logs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="polar-work-", dir=evidence.logs))
    try:
        if handed_in is None:
            left = await _copied(evidence.runtime, folder / "agent", cap_bytes)
            await _copied_base(own, folder / "base", cap_bytes)
        else:
            left = Fetched()
            await _copied_base(own, folder / "base", cap_bytes)
            await to_the_end(in_thread(shutil.copytree, folder / "base", folder / "agent", symlinks=True))
            await handed_in(folder / "agent")
        work = await _compare(folder, left, rules)
        if evidence.logs is not None:
            (evidence.logs / "work.txt").write_text(work.laid.text(), errors="backslashreplace")
        yield work
    finally:
        await to_the_end(in_thread(remove_tree, folder))


def own_runtime(evidence: Evidence) -> Runtime:
    if evidence.own_runtime is None:
        raise EvaluatorError("the evaluator asked for a runtime of its own and has none")
    return evidence.own_runtime


async def _copied(runtime: Runtime, target: Path, cap_bytes: int) -> Fetched:
    fetched = await runtime.fetch(".", target, cap_bytes=cap_bytes)
    if not target.is_dir() or target.is_symlink():
        raise WorkspaceUnusable("the workspace is no longer a folder")
    if cut := [left for left in fetched.left_out if ": too many files" in left or ": deeper than" in left]:
        raise WorkspaceUnusable(f"the workspace cannot be copied: {cut[0]}")
    return fetched


async def _copied_base(runtime: Runtime, target: Path, cap_bytes: int) -> None:
    try:
        fetched = await _copied(runtime, target, cap_bytes)
    except WorkspaceUnusable as error:
        raise EvaluatorError(f"the task's own workspace: {error}") from error
    if cut := [left for left in fetched.left_out if left.endswith("over the cap")]:
        raise EvaluatorError(f"the task's own workspace is larger than cap_bytes ({cap_bytes}): {cut[0]}")


async def _compare(folder: Path, left: Fetched, rules: WorkRules) -> ComparedWork:
    """When cancelled, waits for the thread to end first: its folder is about to be removed."""
    cancelled = Event()
    comparing = asyncio.ensure_future(in_thread(_compared, folder, left, rules, cancelled))
    try:
        await asyncio.wait([comparing])
    except asyncio.CancelledError:
        cancelled.set()
        await to_the_end(asyncio.wait([comparing]))
        comparing.exception()  # marks it as retrieved, so that asyncio logs no warning
        raise
    return comparing.result()


def _compared(folder: Path, left: Fetched, rules: WorkRules, cancelled: Event) -> ComparedWork:
    """Compares `base` and `agent`, and moves the agent's work to `work`."""
    base, agent = _tree(folder / "base"), _tree(folder / "agent")
    installed = _installed(base, agent)
    paths = defaultdict[Kind, list[str]](list)
    removed: list[str] = []
    (folder / "work").mkdir()
    for change in _changes(base, agent, left):
        if cancelled.is_set():
            break
        kind = kind_of(change, rules, installed)
        paths[kind].append(change.path)
        if kind is Kind.WORK:
            if change.before is not None:
                removed.append(change.path)
            if change.after is not None:
                _move(change.after, folder / "work" / change.path)
    laid = LaidWork(*(tuple(paths[kind]) for kind in (Kind.WORK, Kind.TAMPERING, Kind.RESTORED, Kind.IGNORED)))
    gone = [path for path, entry in base.items() if _is_folder(entry) and not _is_folder(agent.get(path))]
    laid = msgspec.structs.replace(laid, left_out=left.left_out)
    empty = tuple(sorted(gone, key=len, reverse=True))
    return ComparedWork(laid, tuple(removed), empty, folder / "base", folder / "work")


def _tree(root: Path) -> dict[str, Path]:
    """Every entry by its path; links are not followed."""
    found: dict[str, Path] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[path.relative_to(root).as_posix()] = path
    return found


def _changes(base: dict[str, Path], agent: dict[str, Path], left: Fetched) -> Iterator[WorkChange]:
    why = {path: why for path, colon, why in (entry.rpartition(": ") for entry in left.left_out) if colon}
    for path in sorted(base.keys() | agent.keys() | why.keys()):
        before, after, left_out = base.get(path), agent.get(path), why.get(path, "")
        if left_out or not _is_same(before, after):
            yield WorkChange(path, before, after, left_out)


def _is_same(before: Path | None, after: Path | None) -> bool:
    """Folders are the same if both are there, and a folder that was removed is its files removed."""
    if before is None or after is None:
        return after is None and _is_folder(before)
    if before.is_symlink() or after.is_symlink():
        return before.is_symlink() and after.is_symlink() and os.readlink(before) == os.readlink(after)
    if before.is_dir() or after.is_dir():
        return before.is_dir() and after.is_dir()
    return before.stat().st_mode == after.stat().st_mode and filecmp.cmp(before, after, shallow=False)


def _is_folder(path: Path | None) -> bool:
    return path is not None and path.is_dir() and not path.is_symlink()


def _installed(base: dict[str, Path], agent: dict[str, Path]) -> frozenset[str]:
    """Folders of installed packages: virtual environments, and `node_modules` where the base has one."""
    environments = {path for path in (*base, *agent) if path.endswith("/pyvenv.cfg")}
    modules = {path for path in base if path.rpartition("/")[2] == "node_modules"}
    return frozenset({path.removesuffix("/pyvenv.cfg") for path in environments} | modules)


def _move(source: Path, target: Path) -> None:
    """The content of a folder is moved with its own changes."""
    if _is_folder(source):
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


async def _lay(runtime: Runtime, work: ComparedWork) -> None:
    for some in _chunks(work.removed):
        await _remove(runtime, (*some, "/"))
    for some in _chunks(work.empty):
        await _remove(runtime, ("/", *some))
    if any(work.work.iterdir()):
        await runtime.put_folder(work.work, ".")


async def _remove(runtime: Runtime, paths: Iterable[str]) -> None:
    command = Command(("sh", "-c", REMOVE, "sh", *paths), log_name="lay")
    if (finished := await runtime.exec(command)).exit_code != 0:
        raise EvaluatorError(f"the work cannot be laid over the base: {finished.stderr_tail[-500:].strip()}")


def _chunks(paths: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (paths[at : at + CHUNK] for at in range(0, len(paths), CHUNK))
