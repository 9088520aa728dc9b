"""`polar harness ls|install|check`: which harnesses there are, which are in the cache, and whether they work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption
from polar.cli.output import console, error_console, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from polar.harnesses.base import Harness, NpmPack

harness = typer.Typer(no_args_is_help=True, help="Harnesses: list, install and check them.")


@harness.command("ls")
def ls(json: JsonOption = False) -> None:
    """List the harnesses: pinned version, installed or not, size, APIs.

    The size includes all packages a harness needs; harnesses share one Node.js.
    """
    from polar.config import cache_dir

    rows = [_row(name) for name in _known()]
    if json:
        print_json({"cache": str(cache_dir() / "npm"), "harnesses": rows})
    else:
        columns = ("harness", "version", "installed", "#size", "APIs")
        print_table(columns, [_cells(row) for row in rows])


@harness.command("install")
def install(
    names: Annotated[list[str] | None, typer.Argument(help="Harnesses, such as pi or codex.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All harnesses: about 0.5 GB.")] = False,
    json: JsonOption = False,
) -> None:
    """Download harnesses and what they need into the cache that all runs on this machine share.

    `polar run` also does this by itself; use this command to download ahead of
    time. Packages in the cache are not downloaded again. POLAR_CACHE moves the
    cache.

        polar harness install pi codex
    """
    from polar.errors import PolarError

    if every == bool(names):
        raise PolarError("name the harnesses to install, or give --all; `polar harness ls` lists them")
    packs = _packs_of(_known() if every else names or [])
    rows = asyncio.run(_fetch_all(packs, quiet=json))
    if json:
        print_json({"packages": rows})
    elif not rows:
        console().print("nothing to install")


@harness.command("check")
def check(
    names: Annotated[list[str], typer.Argument(help="Harnesses, or your own as module:Class.")],
    options: Annotated[str | None, typer.Option(help="Options for them, as JSON.", metavar="JSON")] = None,
    json: JsonOption = False,
) -> None:
    """Check harnesses without a model and without a network.

    Each must be in the cache, print the version it is pinned to, and complete a
    session in the local runtime with a scripted engine. Exit code 1 if one fails.

        polar harness check pi
        polar harness check shell --options '{"argv": ["my-agent"]}'
    """
    from polar.cli.machine.checks import end_checks, print_check, run_checks
    from polar.cli.machine.harness_check import checks_of

    given = _parsed(options)
    rows: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        if not json:
            print_check(row, f"{row['harness']} ")

    for name in names:
        rows += asyncio.run(run_checks(checks_of(name, given), show, stop_at_failure=True, harness=name))
    end_checks(rows, json=json)


def _known() -> list[str]:
    from polar import registry

    return sorted(registry.BUILT_IN["harness"])


def _made(name: str) -> Harness | None:
    """None: it needs options that only a task gives, as `shell` does; such a harness installs nothing."""
    from polar import registry
    from polar.errors import ConfigError
    from polar.types import Spec

    plugin = registry.find("harness", name)
    try:
        registry.options_of("harness", plugin, {})
    except ConfigError:
        return None
    return registry.make("harness", Spec(name=name))


def _row(name: str) -> dict[str, Any]:
    from polar import registry
    from polar.errors import HarnessError

    apis = list(getattr(registry.find("harness", name), "apis", ()))
    row: dict[str, Any] = {"harness": name, "version": None, "installed": True, "packages": [], "apis": apis}
    made = _made(name)
    if made is None:
        return row
    try:
        packs = [_pack_row(pack) for pack in made.requirements()]
    except HarnessError as error:  # its programs are not published for this machine
        return {**row, "version": made.version, "installed": False, "problem": str(error)}
    installed = all(pack["installed"] for pack in packs)
    return {**row, "version": made.version, "installed": installed, "packages": packs}


def _pack_row(pack: NpmPack) -> dict[str, Any]:
    from polar.harnesses.programs.install import cached

    folder = cached(pack)
    size = None if folder is None else _size_bytes(folder)
    row = {"package": pack.package, "version": pack.version}
    return {**row, "installed": folder is not None, "size_bytes": size}


def _size_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = [pack["size_bytes"] for pack in row["packages"] if pack["installed"]]
    installed = row.get("problem") or ("yes" if row["installed"] else "partly" if sizes else "no")
    if row["version"] is None:
        installed = "needs nothing"
    return (
        row["harness"],
        row["version"] or "-",
        installed,
        megabytes(sum(sizes)),
        ", ".join(row["apis"]) or "any",
    )


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes else "-"


def _packs_of(names: list[str]) -> list[NpmPack]:
    """Without duplicates."""
    made = [harness for harness in map(_made, names) if harness is not None]
    return list(dict.fromkeys(pack for harness in made for pack in harness.requirements()))


async def _fetch_all(packs: list[NpmPack], *, quiet: bool) -> list[dict[str, Any]]:
    from polar.harnesses.programs.install import cached
    from polar.harnesses.programs.install import install as fetch

    out = error_console(quiet=quiet)
    rows: list[dict[str, Any]] = []
    with progress_bar(out) as progress:
        bar = progress.add_task("", total=len(packs))
        for pack in packs:
            progress.update(bar, description=f"{pack.package} {pack.version}")
            missing = cached(pack) is None
            await fetch([pack])
            row = _pack_row(pack) | {"fetched": missing}
            state = "fetched" if missing else "already there"
            out.print(f"{pack.package} {pack.version}  {megabytes(row['size_bytes'])}  {state}")
            progress.advance(bar)
            rows.append(row)
    return rows


def _parsed(options: str | None) -> dict[str, Any]:
    import orjson

    from polar.errors import PolarError

    try:
        value = orjson.loads(options or "{}")
    except orjson.JSONDecodeError as error:
        raise PolarError(f"--options is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise PolarError("--options must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]
