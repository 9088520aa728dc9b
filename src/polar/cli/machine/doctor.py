"""`polar doctor`: checks whether this machine has everything a session needs. Each failure names its fix."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.machine.checks import (
    Check,
    CheckOutcome,
    Row,
    end_checks,
    print_check,
    print_verdict,
    run_checks,
)
from polar.cli.options import ConfigOption, JsonOption
from polar.cli.output import error_console

if TYPE_CHECKING:
    from polar.config import Config
    from polar.engines.base import Engine, EngineInfo, Piece
    from polar.runtimes.base import Runtime
    from polar.runtimes.options import Capabilities


HELLO = "Say hello."
AT_WORK = ("well", "draining")
NO_NODE = "none is registered; start one with `polar gateway --server URL`"


def doctor(  # noqa: PLR0913
    ctx: typer.Context,
    config: ConfigOption = None,
    harness: Annotated[list[str] | None, typer.Option(help="Harnesses to check.", show_default="pi")] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(help="Runtimes to check; those named here must work.", show_default="all"),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(envvar="POLAR_SERVER", help="A rollout server whose nodes to check.", show_default="none"),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also what each part can do, not only what it cannot.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check that this machine has everything a session needs.

    Checks disk, engine, renderer, harnesses, runtimes and a server's nodes.
    The first line is the verdict; each failure below it names its fix.
    Exit code 1 if something fails.
    """
    from polar import config as configuration

    chosen = configuration.load(config)
    runs_dir: Path = ctx.obj or chosen.runs_dir
    checks = [*_checks(chosen, runs_dir, harness or ["pi"]), *_runtime_checks(runtime)]
    if server is not None:
        checks.append((f"nodes of {server}", lambda: _nodes(server)))
    rows = _watched(checks, quiet=json)
    if not json:
        print_verdict(rows)
        for row in rows:
            print_check(row, every_detail=details)
    end_checks(rows, json=json)


def _watched(checks: list[Check], *, quiet: bool) -> list[Row]:
    """All checks; a terminal shows which one is under way."""
    out = error_console(quiet=quiet)
    names = [name for name, _ in checks]
    with out.status(f"Checking {names[0]}") as status:

        def show(row: Row) -> None:
            after = names.index(row["check"]) + 1
            status.update(f"Checking {names[after]}" if after < len(names) else "")

        return asyncio.run(run_checks(checks, show))


async def _disk(config: Config, runs_dir: Path) -> str:
    from polar.node.probes import check_disk

    whole = runs_dir.absolute()
    there = next(folder for folder in (whole, *whole.parents) if folder.is_dir())
    check_disk(there, config.node.min_free_bytes)
    return f"{shutil.disk_usage(there).free / 2**30:.1f} GiB free at {there}"


async def _open_files() -> str:
    from polar.node.probes import check_descriptors
    from polar.runs.event_loop import allow_open_files

    check_descriptors()
    most = allow_open_files()
    return f"at most {most} at once; a running session needs about ten" if most else "no limit"


async def _nodes(server: str) -> CheckOutcome:
    from polar.cli.control.nodes import state_of
    from polar.cli.service.remote import connected

    async with connected(server) as client:
        found = await client.nodes()
    details = [
        {
            "about": "node",
            "probe": f"{node.node_id} ({node.name})",
            "state": "ok" if state_of(node) in AT_WORK else "failed",
            "detail": f"{node.sick.part}: {node.sick.why}" if node.sick else state_of(node),
        }
        for node in found
    ]
    ill = [node for node in found if state_of(node) not in AT_WORK]
    text = f"{len(found)} registered, {len(ill)} of them sick or silent" if found else NO_NODE
    return CheckOutcome(text, details, ok=bool(found) and not ill)


def _checks(config: Config, runs_dir: Path, harnesses: list[str]) -> list[Check]:
    return [
        ("disk", lambda: _disk(config, runs_dir)),
        ("open files", _open_files),
        ("Node.js and npm", _npm),
        ("cache", _cache),
        (f"renderer {_renderer_name(config)}", lambda: _renderer(config)),
        (f"engine {config.engine.name}", lambda: _engine(config)),
        *((f"harness {name}", lambda name=name: _harness(name)) for name in harnesses),
    ]


def _runtime_checks(named: list[str] | None) -> list[Check]:
    """Those the user names must work; if none is named, the default one must, and the others are only reported."""
    from polar.registry import BUILT_IN
    from polar.types import TaskRequest

    usual: list[str] = [TaskRequest.model_fields["runtime"].default.name]
    required = named or usual
    names = named or [*usual, *(name for name in BUILT_IN["runtime"] if name not in usual)]
    return [(f"runtime {name}", lambda name=name: _runtime(name, required=name in required)) for name in names]


def _renderer_name(config: Config) -> str:
    spec = None if config.model.mode == "chat" or _gives_text(config) else config.model.spelling
    return spec.name if spec else "of the engine"


def _gives_text(config: Config) -> bool:
    from polar import registry
    from polar.engines.base import TextEngine
    from polar.errors import PolarError

    try:
        return isinstance(registry.make("engine", config.engine), TextEngine)
    except PolarError:  # the check of the engine reports it
        return False


async def _npm() -> str:
    found = shutil.which("npm")
    if found is None:
        raise RuntimeError("npm is not on PATH; harnesses come from the npm registry: install Node.js 20 or newer")
    return found


async def _cache() -> str:
    from polar.config import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        raise RuntimeError(
            f"{folder} cannot be written: {error.strerror}; set POLAR_CACHE to another folder"
        ) from error


async def _renderer(config: Config) -> CheckOutcome:
    """Runs the checks that a node runs when it starts."""
    import msgspec

    from polar import registry
    from polar.tokens.base import Renderer
    from polar.tokens.preflight.checks import preflight

    spec = config.model.spelling
    if _gives_text(config):
        return CheckOutcome("the endpoint renders prompts; its sessions have no tokens to train on")
    if config.model.mode == "chat" or spec is None:
        return CheckOutcome("chat mode: the engine renders prompts; a change of earlier tokens starts a branch")
    renderer: Renderer = registry.make("renderer", spec)
    await renderer.load()
    report = preflight(renderer)
    forked = "later turns start a new trace" + ("" if report.offered else ": the renderer offers no bridge")
    text = "later turns continue the sampled tokens (proven)" if report.bridges else forked
    details: list[dict[str, str]] = [msgspec.to_builtins(finding) for finding in report.findings]
    return CheckOutcome(f"{renderer.fingerprint}, {text}", details, ok=report.bridges)


async def _engine(config: Config) -> CheckOutcome:
    """Samples a short reply: ids and logprobs must come back. Lists the replicas of a pool."""
    from polar import registry
    from polar.engines.base import Replicated

    engine: Engine = registry.make("engine", config.engine)
    try:
        info = await engine.start()
        out = engine.replicas() if isinstance(engine, Replicated) else {}
        text = await _sampled_text(engine, info, config)
    finally:
        await engine.stop()
    details = [
        {"about": "replica", "probe": name, "state": "failed" if why else "ok", "detail": why or "in service"}
        for name, why in out.items()
    ]
    missing = sum(map(bool, out.values()))
    return CheckOutcome(text + (f"; {missing} of {len(out)} replicas are missing" if missing else ""), details)


async def _sampled_text(engine: Engine, info: EngineInfo, config: Config) -> str:
    if _gives_text(config):
        return f"{info.model} answers; without token ids its sessions can be judged, not trained on"
    pieces = await (_sampled_in_chat(engine) if config.model.mode == "chat" else _sampled(engine, config))
    ids = [token for piece in pieces for token in piece.ids]
    values = [value for piece in pieces for value in piece.logprobs]
    missing = sum(value != value for value in values)
    if not ids or len(ids) != len(values):
        raise RuntimeError(
            f"{len(ids)} ids and {len(values)} logprobs came back; such an engine cannot be used for training"
        )
    return f"{info.model}, context of {info.context_tokens} tokens; sampled {len(ids)} tokens" + (
        f", {missing} without a logprob" if missing else " with logprobs"
    )


async def _sampled(engine: Engine, config: Config) -> list[Piece]:
    """With a prompt from the renderer."""
    from polar import registry
    from polar.engines.base import GenerateRequest
    from polar.tokens.base import Renderer
    from polar.types import Message, Sampling, Spec

    renderer: Renderer = registry.make("renderer", config.model.spelling or Spec(name="smollm2"))
    await renderer.load()
    prompt_ids = renderer.render([Message(role="user", content=HELLO)], [])
    request = GenerateRequest(prompt_ids, 16, Sampling(), renderer.stop_ids, "doctor")
    return [piece async for piece in engine.generate(request)]


async def _sampled_in_chat(engine: Engine) -> list[Piece]:
    """With messages that the engine renders."""
    from polar.engines.base import ChatEngine, ChatPrompt
    from polar.types import Message, Sampling

    if not isinstance(engine, ChatEngine):
        raise RuntimeError('it has no chat endpoint; set [model] mode = "tokens" and a renderer')
    prompt = ChatPrompt((Message(role="user", content=HELLO),), (), Sampling(), (), "doctor", max_tokens=16)
    return [part.piece async for part in engine.chat(prompt)]


async def _harness(name: str) -> str:
    from polar import registry
    from polar.harnesses.base import Harness
    from polar.harnesses.programs.install import install
    from polar.types import Spec

    harness: Harness = registry.make("harness", Spec(name=name))
    folders = await install(harness.requirements())
    return f"{harness.name} {harness.version}".strip() + "".join(f", {folder}" for folder in folders.values())


async def _runtime(name: str, *, required: bool) -> CheckOutcome:
    from polar import registry
    from polar.errors import PolarError
    from polar.runtimes.options import RuntimeOptions

    plugin = registry.find("runtime", name)
    options = registry.options_of("runtime", plugin, {})
    try:
        missing, runtime = await plugin.lacking(), plugin(options)
        found = CheckOutcome(missing or await _tried(runtime), ok=not missing)
        if found.ok:  # what a runtime restricts says nothing where it cannot be used
            details = _contained(options.offered) if isinstance(options, RuntimeOptions) else []
            details += [{"about": "note", "probe": "", "state": "noted", "detail": note} for note in runtime.notes]
            found = found._replace(details=details)
    except PolarError as error:
        found = CheckOutcome(str(error), ok=False)
    return found if found.ok or required else found._replace(ok=True, noted=True)


def _contained(offered: Capabilities) -> list[dict[str, str]]:
    """What it can restrict, and the reasons for what it cannot."""
    from polar.runtimes.options import Limits

    reasons = dict(offered.reasons)
    network, limits = reasons.pop("network", ""), [reasons.pop("limits", "")]
    limits += [f"{name}: {reason}" for name, reason in reasons.items() if name in Limits.model_fields]
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
    """Runs a command in it and checks that no folder stays behind."""
    from polar.runtimes.base import Command, SessionFolders

    with tempfile.TemporaryDirectory(prefix="polar-doctor-") as folder:
        folders = SessionFolders(session_id="doctor", root=Path(folder) / "place", logs=Path(folder) / "logs")
        folders.logs.mkdir()
        try:
            await runtime.start(folders)
            finished = await runtime.exec(Command(argv=("/bin/sh", "-c", "echo usable")))
        finally:
            await runtime.stop()
        if finished.exit_code != 0 or folders.root.exists():
            raise RuntimeError(
                f"exit code {finished.exit_code}: {finished.stderr_tail or 'folders were left behind'}"
            )
    return finished.stdout_tail.strip()
