"""`polar image build|ls|rm`: small base images from Debian packages, for the runtimes that run sessions in one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption
from polar.cli.output import clock, console, error_console, print_json, print_table

if TYPE_CHECKING:
    from polar.runtimes.images.build import BuiltImage
    from polar.runtimes.images.catalog import BaseImage

image = typer.Typer(no_args_is_help=True, help="Base images without a registry: build, list, remove.")

DEFAULT_NAME = "polar-base"


@image.command("build")
def build(  # noqa: PLR0913 - each is an option of the command
    name: Annotated[str, typer.Argument(help="What to call it.")] = DEFAULT_NAME,
    kind: Annotated[
        str, typer.Option(help="debian, or busybox: 2 MB, without a C library, so most programs do not run.")
    ] = "debian",
    packages: Annotated[
        str | None,
        typer.Option(help="Debian packages, separated by commas.", show_default="what harnesses need"),
    ] = None,
    apt: Annotated[
        list[str] | None, typer.Option(help="A Debian package more, beside --packages. May be repeated.")
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option(help="A Python package, as pip takes it. May be repeated.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="A Debian release.", show_default="the machine's")] = None,
    uses: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="docker, bubblewrap, apptainer or folder, separated by commas.",
            show_default="all; docker if an engine answers",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Rebuild it, with newer packages.")] = False,
    json: JsonOption = False,
) -> None:
    """Build a base image from Debian packages, unless the same one is already there."""
    from polar.runtimes.images.build import ImageOrder, forms_of, recipe
    from polar.runtimes.images.build import build as build_image

    forms = None if uses is None else forms_of(_words(uses))
    chosen = recipe(kind, None if packages is None else _words(packages), suite, apt or (), pip or ())
    order = ImageOrder(name, chosen, forms, force)
    started = time.monotonic()
    with _steps(name, quiet=json) as show:
        built = asyncio.run(build_image(order, show))
    row = _built_row(built) | {"took_s": round(time.monotonic() - started, 1)}
    print_json(row) if json else _print_built(row)


@image.command("ls")
def ls(json: JsonOption = False) -> None:
    """List the images that were built, and where each can be used."""
    from polar.runtimes.images.catalog import images_dir

    rows = asyncio.run(_rows())
    if json:
        print_json({"images": rows})
    elif not rows:
        console().print(f"no images in {images_dir()}; `polar image build` makes one")
    else:
        columns = ["image", "kind", "suite", "#MB", "built", "usable in", "packages"]
        print_table(columns, [_cells(row) for row in rows])


@image.command("rm")
def rm(name: Annotated[str, typer.Argument(help="An image that was built.")]) -> None:
    """Remove an image from the cache, and from the container engine if one has it."""
    from polar.runtimes.images.catalog import known, remove

    note = asyncio.run(_remove_from_engine(known(name)))
    remove(name)
    console().print(f"removed {name}{note}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@contextmanager
def _steps(name: str, *, quiet: bool) -> Generator[Callable[[str], None]]:
    """Shows each step on stderr: on a terminal in one line that changes, else line by line."""
    out = error_console(quiet=quiet)
    with out.status(f"{name} ...") as status:

        def show(step: str) -> None:
            status.update(f"{name}: {step} ...")
            if not out.is_terminal:
                out.print(f"{name}: {step}")

        yield show


def _built_row(built: BuiltImage) -> dict[str, Any]:
    root = built.image.root
    return _row(built.image, built.engine) | {"engine": built.engine, "root": str(root) if root.is_dir() else None}


async def _rows() -> list[dict[str, Any]]:
    """An image that cannot be read is listed with the reason, not hidden."""
    from polar.errors import PolarError
    from polar.runtimes.images.catalog import built_images, find
    from polar.runtimes.images.engine import engine_images

    rows: list[dict[str, Any]] = []
    async with engine_images() as engine:
        for name in built_images():
            try:
                found = find(name)
            except PolarError as error:
                rows.append({"image": name, "problem": str(error)})
                continue
            if found is not None:
                held = engine is not None and await engine.holds(found)
                rows.append(_row(found, engine.address if engine is not None and held else ""))
    return rows


def _row(image: BaseImage, engine: str) -> dict[str, Any]:
    from polar.runtimes.images.build import FORMS

    there = {"folder": image.root.is_dir(), "engine": bool(engine)}
    record = image.record
    return {
        "image": image.name,
        "kind": record.recipe.kind,
        "suite": record.recipe.suite,
        "size_bytes": record.tar_bytes,
        "built": record.built,
        "usable_in": [use for use, form in FORMS.items() if there[form] and use != form],
        "packages": record.recipe.packages,
        "pip": record.recipe.pip,
        "installed": len(record.versions),
        "sha256": record.tar_sha256,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "problem" in row:
        return (row["image"], *["-"] * 5, row["problem"])
    packages = (*row["packages"], *(f"pip:{each}" for each in row["pip"]))
    return (
        *(row["image"], row["kind"], row["suite"] or "-", f"{row['size_bytes'] / 1e6:.0f}", clock(row["built"])),
        *(", ".join(row["usable_in"]) or "-", " ".join(packages)),
    )


def _print_built(row: dict[str, Any]) -> None:
    out = console()
    out.print(
        f"{row['image']}: packages: {row['installed']}, {row['size_bytes'] / 1e6:.0f} MB, {row['took_s']:.1f} s;"
        f" usable in {', '.join(row['usable_in']) or 'nothing'}"
    )
    if row["root"]:
        out.print(f"  folder  {row['root']}")
    if row["engine"]:
        out.print(f"  engine  {row['image']}:latest at {row['engine']}")


async def _remove_from_engine(name: str) -> str:
    from polar.runtimes.images.engine import engine_images

    async with engine_images() as engine:
        if engine is not None and await engine.remove(name):
            return f", also from the engine at {engine.address}"
    return ""
