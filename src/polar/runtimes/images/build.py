"""Builds an image: a tar from its recipe, a root folder from the tar, and the tar into the Docker Engine.

An image that exists with the same recipe is not built again. An image is complete when it gets its name: a
cancelled build leaves nothing, and the next build removes what a killed one left.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.busybox import BUSYBOX, busybox_tar
from polar.runtimes.images.catalog import RECORD_FILE, BaseImage, ImageRecord, Recipe, find, images_dir
from polar.runtimes.images.debian import debian_recipe, debian_tar
from polar.runtimes.images.engine import engine_images
from polar.runtimes.images.programs import run_program
from polar.store.cache import cached_folder, exclusive_lock

Form = Literal["folder", "engine"]
FORMS: dict[str, Form] = {"apptainer": "folder", "bubblewrap": "folder", "docker": "engine", "folder": "folder"}
"""The form of image that each runtime uses."""


class ImageOrder(msgspec.Struct, frozen=True):
    name: str
    recipe: Recipe
    forms: frozenset[Form] | None = None
    """None: a folder, and the Docker Engine if it answers."""
    afresh: bool = False
    """Build even if the image exists with this recipe: packages may have newer versions."""


class BuiltImage(msgspec.Struct, frozen=True):
    image: BaseImage
    engine: str
    """The address of the Docker Engine that has it now; empty: none."""


def forms_of(names: Iterable[str]) -> frozenset[Form]:
    for name in names:
        if name not in FORMS:
            raise RuntimeFailure(f"cannot build an image for {name!r}, only for {', '.join(FORMS)}")
    return frozenset(FORMS[name] for name in names)


def recipe(
    kind: str,
    packages: Iterable[str] | None,
    suite: str | None,
    more: Sequence[str] = (),
    pip: Sequence[str] = (),
) -> Recipe:
    """None: the default of the kind. `more`: Debian packages beside them; `pip`: Python packages."""
    if kind == "debian":
        return debian_recipe(packages, suite, more, pip)
    if kind != BUSYBOX.kind:
        raise RuntimeFailure(f"{kind!r} is not a kind of image; use debian or busybox")
    if packages is not None or suite is not None or more or pip:
        raise RuntimeFailure("a busybox image takes no packages and no suite")
    return BUSYBOX


async def build(order: ImageOrder, tell: Callable[[str], None]) -> BuiltImage:
    async with engine_images() as engine:
        if order.forms is not None and "engine" in order.forms and engine is None:
            raise RuntimeFailure("no Docker Engine answers to load the image; `make docker` starts one")
        if order.forms is not None and "engine" not in order.forms:
            engine = None
        if engine is not None:
            await engine.refuse_if_taken(order.name)
        try:
            image = await _build_tar(order, tell)
            if order.forms is None or "folder" in order.forms:
                await _unpack(image, tell)
        except OSError as error:  # a full disk, a folder that is not ours
            raise RuntimeFailure(
                f"cannot write the image to {images_dir()}: {error.strerror or error}; POLAR_CACHE sets its folder"
            ) from error
        if engine is None:
            return BuiltImage(image, "")
        if not await engine.holds(image):
            tell(f"loading it into the Docker Engine at {engine.address}")
            await engine.load(image)
        return BuiltImage(image, engine.address)


async def _build_tar(order: ImageOrder, tell: Callable[[str], None]) -> BaseImage:
    if (current := _current(order)) is not None:
        tell("already built")
        return current
    async with exclusive_lock(images_dir() / order.name):
        if (current := _current(order)) is not None:  # another process built it meanwhile
            return current
        for left in images_dir().glob(f".{order.name}+*"):  # a killed build left it
            await in_thread(remove_tree, left)
        scratch = Path(tempfile.mkdtemp(prefix=f".{order.name}+", dir=images_dir()))
        try:
            await _fill(scratch, order.recipe, tell)
            scratch.chmod(0o755)
            _swap(scratch, images_dir() / order.name)
        finally:
            await in_thread(remove_tree, scratch)
    image = find(order.name)
    assert image is not None
    return image


def _current(order: ImageOrder) -> BaseImage | None:
    """The existing image, if it has the same recipe."""
    current = None if order.afresh else find(order.name)
    return current if current is not None and current.record.recipe == order.recipe else None


async def _fill(folder: Path, recipe: Recipe, tell: Callable[[str], None]) -> None:
    tar = folder / "root.tar"
    if recipe.kind == BUSYBOX.kind:
        versions = await busybox_tar(tar, tell)
    else:
        versions = await debian_tar(recipe, tar, tell)
    tell("computing its digest")
    record = ImageRecord(
        recipe=recipe,
        versions=versions,
        tar_sha256=await in_thread(_sha256, tar),
        tar_bytes=tar.stat().st_size,
        built=time.time(),
    )
    (folder / RECORD_FILE).write_text(record.model_dump_json(indent=2))


def _swap(fresh: Path, folder: Path) -> None:
    """Exchanges the two folders; `folder` may be missing."""
    if not folder.exists():
        fresh.rename(folder)
        return
    old = fresh.with_name(f"{fresh.name}+old")
    folder.rename(old)
    fresh.rename(folder)
    old.rename(fresh)


async def _unpack(image: BaseImage, tell: Callable[[str], None]) -> None:
    """All files belong to the builder, who can then use and remove them; runtimes provide devices."""

    async def fill(folder: Path) -> None:
        tell("unpacking the root folder")
        keep = ("--no-same-owner", "--same-permissions", "--delay-directory-restore", "--exclude=./dev/*")
        await run_program(("tar", "--extract", "--file", str(image.tar), "--directory", str(folder), *keep))
        # A setuid program would give every user of this machine the builder's rights.
        await run_program(("chmod", "--recursive", "u+rwX,u-s,g-s", str(folder)))

    await cached_folder(os.path.relpath(image.root, images_dir().parent), fill)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
