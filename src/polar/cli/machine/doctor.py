"""`polar doctor`: is everything here that a session needs? Each failure names its fix."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from polar.cli.output import console, one_line, print_json

if TYPE_CHECKING:
    from polar.config import Config
    from polar.engines.base import Engine, Piece
    from polar.runtimes.base import Runtime
    from polar.runtimes.options import Capabilities


class Found(NamedTuple):
    """What a check has to tell."""

    text: str
    details: list[dict[str, str]] = []
    """One for each thing that was tried, as `about`, `probe`, `state` and `detail`."""
    ok: bool = True
    noted: bool = False
    """Something is missing that nobody has asked for."""


Check = tuple[str, Callable[[], Awaitable[str | Found]]]
"""A name, and what to do: gives what was found, or raises."""


HELLO = "Say hello."
WORDS = {"ok": "ok  ", "noted": "note", "failed": "FAIL"}
STYLES = {"ok": None, "noted": "yellow", "failed": "red"}


def doctor(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Option(help="A polar.toml.", show_default="./polar.toml if any")] = None,
    harness: Annotated[list[str] | None, typer.Option(help="Harnesses to check.", show_default="pi")] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(help="Runtimes to check. One that is named must be usable.", show_default="all"),
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="A rollout server whose nodes are to be well.", show_default="none")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check disk, engine, renderer, harnesses, runtimes and a server's nodes. Exit code 1 when something fails."""
    from polar import config as configuration

    chosen = configuration.load(config)
    runs_dir: Path = ctx.obj or chosen.runs_dir
    checks = [*_machine_checks(chosen, runs_dir), *_checks(chosen, harness or ["pi"]), *_runtime_checks(runtime)]
    if server is not None:
        checks.append((f"nodes of {server}", lambda: _nodes(server)))
    found = asyncio.run(_run_checks(checks, quiet=json))
    if json:
        print_json({"ok": all(row["ok"] for row in found), "checks": found})
    if not all(row["ok"] for row in found):
        raise typer.Exit(1)


async def _run_checks(checks: list[Check], *, quiet: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, check in checks:
        try:
            found = await check()
        except Exception as error:  # a broken plug-in is what this command is here to find
            found = Found(str(error) or type(error).__name__, ok=False)
        rows.append(_row(name, found if isinstance(found, Found) else Found(found)))
        if not quiet:
            _print(rows[-1])
    return rows


def _row(name: str, found: Found) -> dict[str, Any]:
    row: dict[str, Any] = {"check": name, "ok": found.ok, "found": found.text}
    if found.noted:
        row["noted"] = True
    return {**row, "details": found.details} if found.details else row


def _print(row: dict[str, Any]) -> None:
    out, state = console(), "noted" if row.get("noted") else "ok" if row["ok"] else "failed"
    out.print(f"{WORDS[state]} {row['check']}: {one_line(row['found'], 400)}", style=STYLES[state])
    for detail in row.get("details", ()):
        told = f": {one_line(detail['detail'], 400)}" if detail["detail"] else ""
        out.print(
            f"     {detail['about']:9}{detail['state']:7}{detail['probe']}{told}", style=STYLES[detail["state"]]
        )


def _machine_checks(config: Config, runs_dir: Path) -> list[Check]:
    """What a node of this machine tries out again when a session fails through it."""
    return [("disk", lambda: _disk(config, runs_dir)), ("open files", _open_files)]


async def _disk(config: Config, runs_dir: Path) -> str:
    from polar.node.probes import check_disk

    whole = runs_dir.absolute()
    there = next(folder for folder in (whole, *whole.parents) if folder.is_dir())
    check_disk(there, config.node.min_free_bytes)
    return f"{shutil.disk_usage(there).free / 2**30:.1f} GiB are free at {there}"


async def _open_files() -> Found:
    from polar.cli.event_loop import allow_open_files
    from polar.node.probes import check_descriptors

    check_descriptors()
    most = allow_open_files()
    return Found(f"at most {most} at once, about ten for each session that runs" if most else "without a limit")


async def _nodes(server: str) -> Found:
    from polar.cli.service.nodes import state_of
    from polar.client import PolarClient, Retry

    async with PolarClient(server, retry=Retry(total_s=5.0)) as client:
        found = await client.nodes()
    details = [
        {
            "about": "node",
            "probe": f"{node.node_id} ({node.name})",
            "state": "ok" if state_of(node) == "well" else "failed",
            "detail": f"{node.sick.part}: {node.sick.why}" if node.sick else state_of(node),
        }
        for node in found
    ]
    ill = [node for node in found if state_of(node) != "well"]
    told = f"{len(found)} registered, {len(ill)} of them sick or silent" if found else "none is registered"
    return Found(told, details, ok=bool(found) and not ill)


def _checks(config: Config, harnesses: list[str]) -> list[Check]:
    return [
        ("node and npm", _npm),
        ("cache", _cache),
        (f"renderer {_renderer_name(config)}", lambda: _renderer(config)),
        (f"engine {config.engine.name}", lambda: _engine(config)),
        *((f"harness {name}", lambda name=name: _harness(name)) for name in harnesses),
    ]


def _runtime_checks(named: list[str] | None) -> list[Check]:
    """Of all that we know, those must be usable that were named, else the one a task has by default."""
    from polar.registry import BUILT_IN
    from polar.types import TaskRequest

    usual: list[str] = [TaskRequest.model_fields["runtime"].default.name]
    asked = named or usual
    names = named or [*usual, *(name for name in BUILT_IN["runtime"] if name not in usual)]
    return [(f"runtime {name}", lambda name=name: _runtime(name, asked=name in asked)) for name in names]


def _renderer_name(config: Config) -> str:
    spec = None if config.model.mode == "chat" else config.model.spelling
    return spec.name if spec else "of the engine"


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


async def _renderer(config: Config) -> Found:
    """Tries it out, as a node does at its start."""
    import msgspec

    from polar import registry
    from polar.tokens.base import Renderer
    from polar.tokens.preflight.checks import preflight

    spec = config.model.spelling
    if config.model.mode == "chat" or spec is None:
        return Found(
            "chat mode: the engine lays prompts out, and what it changes of earlier tokens starts a branch"
        )
    renderer: Renderer = registry.make("renderer", spec)
    await renderer.load()
    report = preflight(renderer)
    told = (
        "turns go on in their own tokens, which is proven"
        if report.bridges
        else "turns are not continued in their own tokens but forked"
        + ("" if report.offered else ": no bridge is offered, so nothing could be proven")
    )
    details: list[dict[str, str]] = [msgspec.to_builtins(finding) for finding in report.findings]
    return Found(f"{renderer.fingerprint}, {told}", details, ok=report.bridges)


async def _engine(config: Config) -> str:
    """Samples a short reply: ids and logprobs must come back."""
    from polar import registry

    engine: Engine = registry.make("engine", config.engine)
    try:
        info = await engine.start()
        pieces = await (_conversed(engine) if config.model.mode == "chat" else _sampled(engine, config))
    finally:
        await engine.stop()
    ids = [token for piece in pieces for token in piece.ids]
    values = [value for piece in pieces for value in piece.logprobs]
    missing = sum(value != value for value in values)
    if not ids or len(ids) != len(values):
        raise RuntimeError(f"{len(ids)} ids and {len(values)} logprobs came back; the engine cannot be trained on")
    return f"{info.model}, {info.context_tokens} tokens, {len(ids)} ids and logprobs came back, {missing} missing"


async def _sampled(engine: Engine, config: Config) -> list[Piece]:
    """In tokens that the renderer lays out."""
    from polar import registry
    from polar.engines.base import GenerateRequest
    from polar.tokens.base import Renderer
    from polar.types import Message, Sampling, Spec

    renderer: Renderer = registry.make("renderer", config.model.spelling or Spec(name="smollm2"))
    await renderer.load()
    prompt_ids = renderer.render([Message(role="user", content=HELLO)], [])
    request = GenerateRequest(prompt_ids, 16, Sampling(), renderer.stop_ids, "doctor")
    return [piece async for piece in engine.generate(request)]


async def _conversed(engine: Engine) -> list[Piece]:
    """In a conversation that the engine lays out."""
    from polar.engines.base import ChatEngine, ChatPrompt
    from polar.types import Message, Sampling

    if not isinstance(engine, ChatEngine):
        raise RuntimeError('it has no chat endpoint; set [model] mode = "tokens" and a renderer')
    asked = ChatPrompt((Message(role="user", content=HELLO),), (), Sampling(), (), "doctor", max_tokens=16)
    return [part.piece async for part in engine.chat(asked)]


async def _harness(name: str) -> str:
    from polar import registry
    from polar.harnesses.base import Harness
    from polar.harnesses.programs.install import install
    from polar.types import Spec

    harness: Harness = registry.make("harness", Spec(name=name))
    folders = await install(harness.requirements())
    return f"{harness.name} {harness.version}".strip() + "".join(f", {folder}" for folder in folders.values())


async def _runtime(name: str, *, asked: bool) -> Found:
    from polar import registry
    from polar.errors import PolarError
    from polar.runtimes.options import RuntimeOptions

    plugin = registry.find("runtime", name)
    options = registry.options_of("runtime", plugin, {})
    details = _contained(options.offered) if isinstance(options, RuntimeOptions) else []
    try:
        missing, runtime = await plugin.lacking(), plugin(options)
        found = Found(missing or await _tried(runtime), details, ok=not missing)
        details += [{"about": "note", "probe": "", "state": "noted", "detail": note} for note in runtime.notes]
    except PolarError as error:
        found = Found(str(error), details, ok=False)
    return found if found.ok or asked else found._replace(ok=True, noted=True)


def _contained(offered: Capabilities) -> list[dict[str, str]]:
    """What it can hold a session to, and why not to more."""
    reasons = dict(offered.reasons)
    network, limits = reasons.pop("network", ""), [reasons.pop("limits", "")]
    limits += [f"{name}: {reason}" for name, reason in reasons.items()]
    held = (
        ("network", offered.networks, network),
        ("limits", offered.limits, "; ".join(filter(None, limits))),
        ("contains", offered.contains, ""),
    )
    return [
        {
            "about": about,
            "probe": ", ".join(names) or "nothing",
            "state": "ok" if names else "noted",
            "detail": reason,
        }
        for about, names, reason in held
    ]


async def _tried(runtime: Runtime) -> str:
    """Runs a command in it and sees that nothing stays behind."""
    from polar.runtimes.base import Command, SessionFolders

    with tempfile.TemporaryDirectory(prefix="polar-doctor-") as folder:
        place = SessionFolders(session_id="doctor", root=Path(folder) / "place", logs=Path(folder) / "logs")
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
