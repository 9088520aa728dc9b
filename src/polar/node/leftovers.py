"""What a node that died has left on this machine: processes, containers, cgroups, and folders of its sessions.

Each node marks what it makes with its owner's name: its process. Whoever starts next removes what belongs to
owners that are dead, and nothing else.
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
    """Says whose run this is, so that its folders can be told from those of the dead."""
    paths.owner.write_text(f"{owner_scope()} {owner()}\n", encoding="ascii")


def release(paths: RunPaths) -> None:
    """A run in which a place could not be removed stays its owner's, so that whoever starts next tries again."""
    if not any(_places(paths)):
        paths.owner.unlink(missing_ok=True)


async def sweep(runs_dir: Path) -> None:
    """Removes the leftovers of all runtimes, then the places of dead runs. What fails is logged: it is no reason
    not to start."""
    for name in registry.BUILT_IN["runtime"]:
        try:
            runtime: type[Runtime] = registry.find("runtime", name)
            if count := await runtime.sweep():
                LOGGER.warning("%s: removed what %d dead owners or sessions had left", name, count)
        except PolarError as error:
            LOGGER.info("%s: not swept: %s", name, error)
        except Exception:
            LOGGER.exception("%s: sweeping failed", name)
    for paths in _dead_runs(runs_dir):
        for place in _places(paths):
            try:
                await asyncio.to_thread(remove_tree, place)
            except PolarError as error:
                LOGGER.warning("%s", error)
        release(paths)


def _places(paths: RunPaths) -> list[Path]:
    return list(paths.root.glob("sessions/*/place"))


def _dead_runs(runs_dir: Path) -> list[RunPaths]:
    """A run of a whole service holds those of its nodes."""
    marks = [mark for pattern in ("*/owner", "*/nodes/*/owner") for mark in sorted(runs_dir.glob(pattern))]
    return [RunPaths(mark.parent) for mark in marks if _is_dead(mark)]


def _is_dead(mark: Path) -> bool:
    """Only what was made here can be judged: elsewhere the same process id is another process."""
    try:
        where, _, name = mark.read_text(encoding="ascii").strip().partition(" ")
        return where == owner_scope() and bool(where) and not owner_lives(name)
    except (OSError, ValueError):
        return False
