"""What may be removed from this machine: workspaces of dead runs; images, checkouts and bundles that no session
has used for long.

Only what Polar made, and nothing that is in use: a run belongs to its owner's process, an image in a mount or a
container is left alone, and so is everything that cannot be told.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from polar.config import cache_dir
from polar.errors import PolarError
from polar.node.leftovers import dead_runs, release, session_folders, sweep_runtimes
from polar.runtimes.apptainer.images import pulled_images_dir
from polar.runtimes.docker.api import connected
from polar.runtimes.docker.task_images import remove_task_image, task_images
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.processes import PROC, process_ids
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.catalog import built_images, find, images_dir
from polar.runtimes.images.engine import engine_images
from polar.store.cache import exclusive_lock
from polar.store.paths import RunPaths

Kind = Literal["workspace", "task image", "built image", "pulled image", "checkout", "bundle"]
CACHED: dict[Kind, str] = {"checkout": "workspaces", "bundle": "bundles"}
"""Folders of the cache (`session/files/repository.py`), each with one folder for each commit or bundle."""


class Prunable(msgspec.Struct, frozen=True):
    kind: Kind
    name: str
    size_bytes: int
    used_at: float
    """Last use, in Unix seconds."""
    remove: Callable[[], Awaitable[None]]


async def find_prunable(runs_dir: Path, unused_s: float) -> list[Prunable]:
    """`unused_s`: images that a session used more recently stay. Workspaces of dead runs never have a use."""
    before, mounted = time.time() - unused_s, await in_thread(mounted_paths)
    images = [*await _built(mounted), *_pulled(mounted), *await _task_images()]
    found = [*_workspaces(runs_dir), *images, *_cached(mounted)]
    return [each for each in found if each.kind == "workspace" or each.used_at <= before]


async def prune(chosen: Iterable[Prunable]) -> dict[str, str]:
    """Removes them. Returns why some could not be removed, by name."""
    problems: dict[str, str] = {}
    await sweep_runtimes()  # no process works in a workspace that is removed
    for each in chosen:
        try:
            await each.remove()
        except (PolarError, OSError) as error:
            problems[each.name] = str(error)
    return problems


def _workspaces(runs_dir: Path) -> Iterable[Prunable]:
    for paths in dead_runs(runs_dir):
        for folder in session_folders(paths):

            async def remove(folder: Path = folder, paths: RunPaths = paths) -> None:
                await in_thread(remove_tree, folder)
                release(paths)

            yield Prunable("workspace", str(folder), size_of(folder), folder.lstat().st_mtime, remove)


async def _built(mounted: set[str]) -> list[Prunable]:
    found: list[Prunable] = []
    for name in built_images():
        try:
            image = find(name)
        except PolarError:  # `polar image ls` shows it
            continue
        if image is None or _is_mounted(image.root, mounted):
            continue

        async def remove(name: str = name) -> None:
            async with exclusive_lock(images_dir() / name), engine_images() as engine:
                if engine is not None:
                    await engine.remove(name)  # refused if a container uses it
                await in_thread(remove_tree, images_dir() / name)

        size = await in_thread(size_of, image.folder)
        found.append(Prunable("built image", name, size, image.used_at, remove))
    return found


def _pulled(mounted: set[str]) -> Iterable[Prunable]:
    folder = pulled_images_dir()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(".") or not path.is_dir() or _is_mounted(path / "root", mounted):
            continue

        async def remove(path: Path = path) -> None:
            async with exclusive_lock(path):
                await in_thread(remove_tree, path)

        yield Prunable("pulled image", path.name, size_of(path), path.stat().st_mtime, remove)


def _cached(mounted: set[str]) -> Iterable[Prunable]:
    """Used when a session begins, which is noted as the folder's time: the workspace is a copy of it."""
    for kind, name in CACHED.items():
        folder = cache_dir() / name
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.startswith(".") or not path.is_dir() or _is_mounted(path, mounted):
                continue

            used_at = path.stat().st_mtime
            remove = partial(_remove_cached, path, used_at)
            yield Prunable(kind, f"{name}/{path.name}", size_of(path), used_at, remove)


async def _remove_cached(path: Path, used_at: float) -> None:
    """A session that copies the folder holds no lock: it must not find half of it."""
    async with exclusive_lock(path):
        if path.stat().st_mtime != used_at:
            raise PolarError("it stays: a session has used it since it was found")
        # A name that `cached_folder` removes, in case this process is killed.
        gone = path.with_name(f".{path.name}~{secrets.token_hex(4)}")
        path.rename(gone)
        await in_thread(remove_tree, gone)


async def _task_images() -> list[Prunable]:
    async with engine_images() as engine:
        if engine is None:
            return []
    async with connected() as api:
        found = await task_images(api)
    return [
        Prunable("task image", each.name, each.size_bytes, each.used_at, partial(_remove_task_image, each.name))
        for each in found
        if not each.in_use
    ]


async def _remove_task_image(name: str) -> None:
    async with connected() as api:
        await remove_task_image(api, name)


def mounted_paths() -> set[str]:
    """Sources of all mounts on this machine, as paths in their file systems."""
    found, seen = set[str](), set[str]()
    for pid in process_ids():
        try:
            namespace = os.readlink(PROC / str(pid) / "ns" / "mnt")
            if namespace in seen:
                continue
            seen.add(namespace)
            lines = (PROC / str(pid) / "mountinfo").read_text(errors="surrogateescape").splitlines()
        except OSError:  # it has ended, or is another user's
            continue
        for line in lines:
            fields = line.split(" ")
            found |= {fields[3], *_lower_folders(fields[-1])}
    return found


def _lower_folders(options: str) -> list[str]:
    """Of an overlay."""
    named = [option.partition("=")[2] for option in options.split(",") if option.startswith("lowerdir=")]
    return [folder for folders in named for folder in folders.split(":")]


def _is_mounted(root: Path, mounted: set[str]) -> bool:
    """Compares also the path inside its file system, which is what the source of a bind mount shows."""
    resolved = root.resolve()
    at = next((parent for parent in resolved.parents if parent.is_mount()), Path("/"))
    return bool({str(resolved), f"/{resolved.relative_to(at)}"} & mounted)


def size_of(folder: Path) -> int:
    """What it takes on disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for path in (parent, *(os.path.join(parent, name) for name in names)):
            try:
                total += os.lstat(path).st_blocks * 512
            except OSError:
                continue
    return total
