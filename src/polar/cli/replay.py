"""`polar replay`: a stored session's calls built again, perhaps by another builder. Nothing is run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from polar.cli.output import console, number, print_json, print_table, visible

if TYPE_CHECKING:
    from polar.cli.stored import RunSession
    from polar.types import Spec, Trajectory


def replay(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(help="A session's id, or the beginning of it.")],
    builder: Annotated[str | None, typer.Option(help="The builder; by default the task's own.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the builder, as key=value.")] = None,
    run: Annotated[str | None, typer.Option(help="The run; by default the latest that holds it.")] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Write traces.BUILDER.msgpack beside the original.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build a stored session's traces again from its calls; nothing is run."""
    from polar.cli.stored import load_session, runs_dir_of
    from polar.store.trajectories import write_trajectory

    options = _options_of(option or [])
    stored = asyncio.run(load_session(runs_dir_of(ctx.obj), run, session))
    spec = _spec(stored, builder, options)
    rebuilt = _build(stored, spec)
    saved = _path_for(stored, spec) if save else None
    if saved is not None:
        write_trajectory(saved, rebuilt)
    report = _report(stored, spec, rebuilt, saved)
    print_json(report) if json else _print_report(report)


def _options_of(pairs: list[str]) -> dict[str, Any]:
    """Values are JSON where they read as such, else text."""
    import orjson

    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not key=value", param_hint="--option")
        try:
            options[key] = orjson.loads(value)
        except orjson.JSONDecodeError:
            options[key] = value
    return options


def _spec(stored: RunSession, builder: str | None, options: dict[str, Any]) -> Spec:
    from polar.types import Spec

    own = stored.lease.task.builder
    if builder is None or builder == own.name:
        return Spec(name=own.name, options=own.options | options)
    return Spec(name=builder, options=options)


def _build(stored: RunSession, spec: Spec) -> Trajectory:
    from polar import registry
    from polar.errors import boundary

    made = registry.make("builder", spec)
    with boundary("builder"):
        return made.build(stored.session_id, stored.calls)


def _path_for(stored: RunSession, spec: Spec) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.name)
    return stored.traces_path.with_name(f"traces.{name}.msgpack")


def _report(stored: RunSession, spec: Spec, rebuilt: Trajectory, saved: Path | None) -> dict[str, Any]:
    return {
        "run_id": stored.run.run_id,
        "session_id": stored.session_id,
        "builder": spec.model_dump(mode="json"),
        "stored": _stored_statistics(stored),
        "rebuilt": rebuilt.statistics,
        "traces": [
            {
                "kind": trace.kind,
                "prompt_tokens": len(trace.prompt_ids),
                "response_tokens": len(trace.response_ids),
                "trainable_tokens": trace.trainable_tokens,
            }
            for trace in rebuilt.traces
        ],
        "saved": str(saved) if saved else None,
    }


def _stored_statistics(stored: RunSession) -> dict[str, Any] | None:
    if stored.result is not None:
        return stored.result.statistics.model_dump(mode="json")
    trajectory = stored.trajectory()
    return trajectory.statistics if trajectory else None


def _print_report(report: dict[str, Any]) -> None:
    before: dict[str, Any] = report["stored"] or {}
    after: dict[str, Any] = report["rebuilt"]
    out = console()
    out.print(f"session {report['session_id']}  run {report['run_id']}  builder {report['builder']['name']}\n")
    names = list(dict.fromkeys([*before, *after]))
    rows = [(name.replace("_", " "), _cell(before.get(name)), _cell(after.get(name))) for name in names]
    print_table(["", "#stored", "#rebuilt"], rows)
    out.print()
    traces = [
        (str(index), *(str(value) for value in trace.values())) for index, trace in enumerate(report["traces"])
    ]
    print_table(["#trace", "kind", "#prompt", "#response", "#trainable"], traces)
    if report["saved"]:
        out.print(f"\nsaved to {report['saved']}")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        counts = cast("dict[str, int]", value)
        return ", ".join(f"{visible(reason)} {count}" for reason, count in counts.items()) or "-"
    return number(value)
