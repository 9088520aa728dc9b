"""Removes what killed nodes have left on this machine: processes, containers, cgroups, and session folders.

Each node marks what it makes with its owner, which is its process. The next node to start removes what belongs to
dead owners, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
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


class Holder(StrEnum):
    """Who works in a run."""

    NONE = "none"
    LIVE = "live"
    DEAD = "dead"
    ELSEWHERE = "elsewhere"
    """The mark is of another machine, or of before a reboot: its process cannot be seen."""


def holder_of(mark: Path) -> Holder:
    """`mark`: the file `owner` of a run."""
    try:
        where, _, name = mark.read_text(encoding="ascii").strip().partition(" ")
    except FileNotFoundError:
        return Holder.NONE
    except (OSError, ValueError):
        return Holder.ELSEWHERE
    if not where or where != owner_scope():  # the same process id is another process there
        return Holder.ELSEWHERE
    try:
        return Holder.LIVE if owner_lives(name) else Holder.DEAD
    except ValueError:
        return Holder.ELSEWHERE


def is_held(paths: RunPaths) -> bool:
    """Whether a process works in the run, or may: one of another machine cannot be seen."""
    return holder_of(paths.owner) in (Holder.LIVE, Holder.ELSEWHERE)


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


async def sweep_runtimes() -> int:
    """Ends the processes and containers of dead nodes. Failures are only logged. Returns how many dead owners or
    sessions had left some."""
    ended = 0
    for name in registry.BUILT_IN["runtime"]:
        try:
            runtime: type[Runtime] = registry.find("runtime", name)
            if count := await runtime.sweep():
                ended += count
                LOGGER.warning("%s: removed the leftovers of %d dead owners or sessions", name, count)
        except PolarError as error:
            LOGGER.info("%s: not swept: %s", name, error)
        except Exception:
            LOGGER.exception("%s: sweeping failed", name)
    return ended


def session_folders(paths: RunPaths) -> list[Path]:
    """Of sessions, of evaluators' own runtimes, and of runtimes that were started ahead."""
    patterns = ("sessions/*/place", "sessions/*/evaluator-place", "warm/*/place")
    return [folder for pattern in patterns for folder in paths.root.glob(pattern)]


def dead_runs(runs_dir: Path) -> list[RunPaths]:
    """Including the nodes' runs inside the run of a whole service, and what scored a run again."""
    patterns = ("*/owner", "*/nodes/*/owner", "*/rescores/*/owner")
    marks = [mark for pattern in patterns for mark in sorted(runs_dir.glob(pattern))]
    return [RunPaths(mark.parent) for mark in marks if holder_of(mark) is Holder.DEAD]
