"""Removes whole runs: those that are named, or those that a rule no longer keeps. Never one that is live."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from polar.errors import ConfigError, PolarError
from polar.node.leftovers import Holder, holder_of, sweep_runtimes
from polar.runs.prune import size_of
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread
from polar.store.paths import RunPaths, find_run, list_runs

MARKS = ("owner", "nodes/*/owner", "rescores/*/owner")
"""Of the run's process, of the nodes of a whole service, and of what scores the run again."""


class RemovableRun(msgspec.Struct, frozen=True):
    paths: RunPaths
    size_bytes: int
    used_at: float
    """When its record or its journal changed last, in Unix seconds."""


class RetentionRule(msgspec.Struct, frozen=True):
    """Which runs stay."""

    keep: int | None = None
    """So many of the newest; None: as many as there are."""
    older_than_s: float | None = None
    """Runs that changed within this time stay, too."""

    def lets_go(self, runs: Sequence[RunPaths]) -> list[RunPaths]:
        """`runs`: oldest first. Live ones stay and count among the newest."""
        old = runs if self.keep is None else runs[: max(0, len(runs) - self.keep)]
        before = time.time() - (self.older_than_s or 0.0)
        return [run for run in old if not live_mark(run) and used_at(run) <= before]


def named_runs(runs_dir: Path, names: Iterable[str]) -> list[RunPaths]:
    """Each once, by its id or a unique beginning of it. Raises if one is live: then none is removed."""
    found = {run.run_id: run for name in names for run in (find_run(runs_dir, name),)}
    for run in found.values():
        refuse_live(run)
    return list(found.values())


def runs_let_go(runs_dir: Path, retention: RetentionRule) -> list[RunPaths]:
    return retention.lets_go(list_runs(runs_dir))


def refuse_live(run: RunPaths) -> None:
    mark = live_mark(run)
    if mark is None:
        return
    if holder_of(mark) is Holder.LIVE:
        raise ConfigError(f"run {run.run_id} is live (process {_pid(mark)}): end it first")
    raise ConfigError(
        f"run {run.run_id} may be live: its process is on another machine, or was there before a reboot. If it is "
        f"dead, remove {mark} and try again"
    )


def live_mark(run: RunPaths) -> Path | None:
    """The file `owner` of a process that works in the run, or may."""
    marks = (mark for pattern in MARKS for mark in sorted(run.root.glob(pattern)))
    return next((mark for mark in marks if holder_of(mark) in (Holder.LIVE, Holder.ELSEWHERE)), None)


def used_at(run: RunPaths) -> float:
    times = [path.stat().st_mtime for path in (run.record, run.journal) if path.exists()]
    return max(times, default=0.0)


def removable(run: RunPaths) -> RemovableRun:
    return RemovableRun(run, size_of(run.root), used_at(run))


async def remove_runs(chosen: Iterable[RemovableRun]) -> dict[str, str]:
    """Returns why some could not be removed, by id."""
    problems: dict[str, str] = {}
    await sweep_runtimes()  # no process works in a workspace that is removed
    for each in chosen:
        try:
            refuse_live(each.paths)  # it may have been resumed since it was chosen
            await in_thread(_remove, each.paths)
        except (PolarError, OSError) as error:
            problems[each.paths.run_id] = str(error)
    return problems


def _remove(run: RunPaths) -> None:
    """`run.json` last: if this is killed halfway, the run is still listed and can be removed again."""
    for path in sorted(run.root.iterdir()):
        if path == run.record:
            continue
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            os.unlink(path)
    remove_tree(run.root)


def _pid(mark: Path) -> str:
    return mark.read_text(encoding="ascii").split(" ")[-1].partition(".")[0]
