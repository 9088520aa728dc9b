"""Makes an image: a tar from its recipe, a root folder from the tar, and the tar into a container engine.

What is there already and is what was asked for is not made again. What takes an image's name is complete: a build
that is broken off leaves nothing, and one that is killed leaves what the next one removes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from polar.errors import RuntimeFailure
from polar.runtimes.files.folders import remove_tree
from polar.runtimes.host.threads import in_thread
from polar.runtimes.images.busybox import BUSYBOX, busybox_tar
from polar.runtimes.images.catalog import RECORD_FILE, BaseImage, ImageRecord, Recipe, find, images_dir
from polar.runtimes.images.debian import debian_recipe, debian_tar
from polar.runtimes.images.engine import EngineImages, engine_images
from polar.runtimes.images.programs import run_program
from polar.store.cache import alone_at, cached_folder

Form = Literal["folder", "engine"]
FORMS: dict[str, Form] = {"apptainer": "folder", "bubblewrap": "folder", "docker": "engine", "folder": "folder"}
"""What each runtime takes an image as."""


class ImageOrder(msgspec.Struct, frozen=True):
    name: str
    recipe: Recipe
    forms: frozenset[Form] | None = None
    """None: a folder, and into an engine if one answers."""
    afresh: bool = False
    """Also where there is one of this recipe: packages may have newer versions."""


class BuiltImage(msgspec.Struct, frozen=True):
    image: BaseImage
    engine: str
    """The address of the engine that has it now; empty: none."""


def forms_of(names: Iterable[str]) -> frozenset[Form]:
    for name in names:
        if name not in FORMS:
            raise RuntimeFailure(f"an image cannot be made for {name!r}, only for {', '.join(FORMS)}")
    return frozenset(FORMS[name] for name in names)


def recipe(kind: str, packages: Iterable[str] | None, suite: str | None) -> Recipe:
    """None: as is usual for the kind."""
    if kind == "debian":
        return debian_recipe(packages, suite)
    if kind != BUSYBOX.kind:
        raise RuntimeFailure(f"{kind!r} is no kind of image; there are debian and busybox")
    if packages is not None or suite is not None:
        raise RuntimeFailure("a busybox image has no packages and no suite to choose")
    return BUSYBOX


async def build(order: ImageOrder, tell: Callable[[str], None]) -> BuiltImage:
    async with engine_images() as engine:
        if order.forms is not None and "engine" in order.forms and engine is None:
            raise RuntimeFailure("no container engine answers to take the image in; `make docker` starts one")
        if order.forms is not None and "engine" not in order.forms:
            engine = None
        if engine is not None:
            await engine.refuse_if_taken(order.name)
        try:
            image = await _made(order, tell)
            if order.forms is None or "folder" in order.forms:
                await _unpacked(image, tell)
        except OSError as error:  # a full disk, a folder that is not ours
            raise RuntimeFailure(
                f"{images_dir()} cannot take the image: {error.strerror or error}; POLAR_CACHE names another place"
            ) from error
        if engine is None:
            return BuiltImage(image, "")
        await _brought_in(image, engine, tell)
        return BuiltImage(image, engine.address)


async def _made(order: ImageOrder, tell: Callable[[str], None]) -> BaseImage:
    if (current := _current(order)) is not None:
        tell("it is there already")
        return current
    async with alone_at(images_dir() / order.name):
        if (current := _current(order)) is not None:  # made by another meanwhile
            return current
        for left in images_dir().glob(f".{order.name}+*"):  # of a build that was killed
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
    """The image as it is, where it is what was asked for."""
    current = None if order.afresh else find(order.name)
    return current if current is not None and current.record.recipe == order.recipe else None


async def _fill(folder: Path, recipe: Recipe, tell: Callable[[str], None]) -> None:
    tar = folder / "root.tar"
    if recipe.kind == BUSYBOX.kind:
        versions = await busybox_tar(tar, tell)
    else:
        versions = await debian_tar(recipe, tar, tell)
    tell("taking its digest")
    record = ImageRecord(
        recipe=recipe,
        versions=versions,
        tar_sha256=await in_thread(_sha256, tar),
        tar_bytes=tar.stat().st_size,
        built=time.time(),
    )
    (folder / RECORD_FILE).write_text(record.model_dump_json(indent=2))


def _swap(fresh: Path, folder: Path) -> None:
    """Puts `fresh` in the place of `folder`, and what was there in the place of `fresh`."""
    if not folder.exists():
        fresh.rename(folder)
        return
    old = fresh.with_name(f"{fresh.name}+old")
    folder.rename(old)
    fresh.rename(folder)
    old.rename(fresh)


async def _unpacked(image: BaseImage, tell: Callable[[str], None]) -> None:
    """Everything belongs to whoever builds, who can then use and remove it; devices come from the runtimes."""

    async def fill(folder: Path) -> None:
        tell("unpacking the root folder")
        keep = ("--no-same-owner", "--same-permissions", "--delay-directory-restore", "--exclude=./dev/*")
        await run_program(("tar", "--extract", "--file", str(image.tar), "--directory", str(folder), *keep))
        # A program that acts for its owner would act for the builder, at the hands of anyone on this machine.
        await run_program(("chmod", "--recursive", "u+rwX,u-s,g-s", str(folder)))

    await cached_folder(os.path.relpath(image.root, images_dir().parent), fill)


async def _brought_in(image: BaseImage, engine: EngineImages, tell: Callable[[str], None]) -> None:
    if not await engine.holds(image):
        tell(f"bringing it into the engine at {engine.address}")
        await engine.bring_in(image)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
