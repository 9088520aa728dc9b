"""Removes what killed nodes have left on this machine: processes, containers, cgroups, and session folders.

Each node marks what it makes with its owner, which is its process. The next node to start removes what belongs to
dead owners, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from polar import registry
from polar.errors import PolarError
from polar.runtimes.base import Runtime
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.processes import owner, owner_lives, owner_scope
from polar.store.paths import RunPaths

LOGGER = logging.getLogger("polar.node")


def claim(paths: RunPaths) -> None:
    """Marks the run with this process as its owner."""
    paths.owner.write_text(f"{owner_scope()} {owner()}\n", encoding="ascii")


def release(paths: RunPaths) -> None:
    """Keeps the mark while session folders are left, so that the next node tries to remove them again."""
    if not any(session_folders(paths)):
        paths.owner.unlink(missing_ok=True)


def is_held(paths: RunPaths) -> bool:
    """Whether a process works in the run, or may: one of another machine cannot be seen."""
    return paths.owner.exists() and not _is_dead(paths.owner)


async def sweep(runs_dir: Path) -> None:
    """Removes the leftovers of all runtimes, then the session folders of dead runs. Failures are only logged."""
    await sweep_runtimes()
    for paths in dead_runs(runs_dir):
        for folder in session_folders(paths):
            try:
                await asyncio.to_thread(remove_tree, folder)
            except PolarError as error:
                LOGGER.warning("%s", error)
        release(paths)


async def sweep_runtimes() -> None:
    """Ends the processes and containers of dead nodes. Failures are only logged."""
    for name in registry.BUILT_IN["runtime"]:
        try:
            runtime: type[Runtime] = registry.find("runtime", name)
            if count := await runtime.sweep():
                LOGGER.warning("%s: removed the leftovers of %d dead owners or sessions", name, count)
        except PolarError as error:
            LOGGER.info("%s: not swept: %s", name, error)
        except Exception:
            LOGGER.exception("%s: sweeping failed", name)


def session_folders(paths: RunPaths) -> list[Path]:
    """Of sessions, of evaluators' own runtimes, and of runtimes that were started ahead."""
    patterns = ("sessions/*/place", "sessions/*/evaluator-place", "warm/*/place")
    return [folder for pattern in patterns for folder in paths.root.glob(pattern)]


def dead_runs(runs_dir: Path) -> list[RunPaths]:
    """Including the nodes' runs inside the run of a whole service, and what scored a run again."""
    patterns = ("*/owner", "*/nodes/*/owner", "*/rescores/*/owner")
    marks = [mark for pattern in patterns for mark in sorted(runs_dir.glob(pattern))]
    return [RunPaths(mark.parent) for mark in marks if _is_dead(mark)]


def _is_dead(mark: Path) -> bool:
    """Only for marks of this machine: elsewhere the same process id is another process."""
    try:
        where, _, name = mark.read_text(encoding="ascii").strip().partition(" ")
        return where == owner_scope() and bool(where) and not owner_lives(name)
    except (OSError, ValueError):
        return False
