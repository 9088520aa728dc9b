"""`polar doctor`: is everything here that a session needs? Each failure names its fix."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.output import console, one_line, print_json

if TYPE_CHECKING:
    from polar.config import Config

Check = tuple[str, Callable[[], Awaitable[str]]]
"""A name, and what to do: gives a word on what was found, or raises."""


def doctor(
    config: Annotated[Path | None, typer.Option(help="A polar.toml.", show_default="./polar.toml if any")] = None,
    harness: Annotated[list[str] | None, typer.Option(help="Harnesses to check.", show_default="pi")] = None,
    runtime: Annotated[list[str] | None, typer.Option(help="Runtimes to check.", show_default="local")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the engine, the renderer, harnesses and runtimes. Exit code 1 when something is missing."""
    from polar import config as configuration

    chosen = configuration.load(config)
    found = asyncio.run(_run_checks(_checks(chosen, harness or ["pi"], runtime or ["local"]), quiet=json))
    if json:
        print_json({"ok": all(row["ok"] for row in found), "checks": found})
    if not all(row["ok"] for row in found):
        raise typer.Exit(1)


async def _run_checks(checks: list[Check], *, quiet: bool) -> list[dict[str, Any]]:
    out = console()
    rows: list[dict[str, Any]] = []
    for name, check in checks:
        try:
            row: dict[str, Any] = {"check": name, "ok": True, "found": await check()}
        except Exception as error:  # a broken plug-in is what this command is here to find
            row = {"check": name, "ok": False, "found": str(error) or type(error).__name__}
        rows.append(row)
        if not quiet:
            out.print(
                f"{'ok  ' if row['ok'] else 'FAIL'} {name}: {one_line(row['found'], 400)}", style=_style(row)
            )
    return rows


def _style(row: dict[str, Any]) -> str | None:
    return None if row["ok"] else "red"


def _checks(config: Config, harnesses: list[str], runtimes: list[str]) -> list[Check]:
    return [
        ("node and npm", _npm),
        ("cache", _cache),
        (f"renderer {config.model.renderer.name}", lambda: _renderer(config)),
        (f"engine {config.engine.name}", lambda: _engine(config)),
        *((f"harness {name}", lambda name=name: _harness(name)) for name in harnesses),
        *((f"runtime {name}", lambda name=name: _runtime(name)) for name in runtimes),
    ]


async def _npm() -> str:
    found = shutil.which("npm")
    if found is None:
        raise RuntimeError("npm is not on PATH; harnesses come from the npm registry: install Node 20 or newer")
    return found


async def _cache() -> str:
    from polar.config import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise RuntimeError(f"{folder} cannot be written: {error.strerror}; set POLAR_CACHE to another") from error


async def _renderer(config: Config) -> str:
    """Tries it out, as a node does at its start."""
    from polar import registry
    from polar.tokens.base import Renderer
    from polar.tokens.preflight import preflight

    renderer: Renderer = registry.make("renderer", config.model.renderer)
    await renderer.load()
    report = preflight(renderer)
    if not report.bridges:
        raise RuntimeError("turns are not continued in their own tokens but forked; " + "; ".join(report.problems))
    proven = [f.probe for f in report.findings if f.passed and not f.detail]
    doubts = report.problems + [f"{f.probe}: {f.detail}" for f in report.findings if f.passed and f.detail]
    return f"{renderer.fingerprint}, proven: {', '.join(proven)}" + "".join(f"; {doubt}" for doubt in doubts)


async def _engine(config: Config) -> str:
    """Samples a short reply through the renderer: ids, logprobs and text must come back."""
    from polar import registry
    from polar.engines.base import Engine, GenerateRequest
    from polar.tokens.base import Renderer
    from polar.types import Message, Sampling

    renderer: Renderer = registry.make("renderer", config.model.renderer)
    await renderer.load()
    engine: Engine = registry.make("engine", config.engine)
    try:
        info = await engine.start()
        prompt_ids = renderer.render([Message(role="user", content="Say hello.")], [])
        request = GenerateRequest(prompt_ids, 16, Sampling(), renderer.stop_ids, "doctor")
        pieces = [piece async for piece in engine.generate(request)]
    finally:
        await engine.stop()
    ids = [token for piece in pieces for token in piece.ids]
    values = [value for piece in pieces for value in piece.logprobs]
    missing = sum(value != value for value in values)
    if not ids or len(ids) != len(values):
        raise RuntimeError(f"{len(ids)} ids and {len(values)} logprobs came back; the engine cannot be trained on")
    return f"{info.model}, {info.context_tokens} tokens, {len(ids)} ids and logprobs came back, {missing} missing"


async def _harness(name: str) -> str:
    from polar import registry
    from polar.harnesses.base import Harness
    from polar.harnesses.install import install
    from polar.types import Spec

    harness: Harness = registry.make("harness", Spec(name=name))
    folders = await install(harness.requirements())
    return f"{harness.name} {harness.version}".strip() + "".join(f", {folder}" for folder in folders.values())


async def _runtime(name: str) -> str:
    """Runs a command in it and sees that nothing stays behind."""
    from polar import registry
    from polar.runtimes.base import Command, Place, Runtime
    from polar.types import Spec

    runtime: Runtime = registry.make("runtime", Spec(name=name))
    with tempfile.TemporaryDirectory(prefix="polar-doctor-") as folder:
        place = Place(session_id="doctor", root=Path(folder) / "place", logs=Path(folder) / "logs")
        place.logs.mkdir()
        try:
            await runtime.start(place)
            finished = await runtime.exec(Command(argv=("/bin/sh", "-c", "echo usable")))
        finally:
            await runtime.stop()
        if finished.exit_code != 0 or place.root.exists():
            raise RuntimeError(
                f"exit code {finished.exit_code}: {finished.stderr_tail or 'folders were left behind'}"
            )
    return finished.stdout_tail.strip()
