"""`polar replay`: builds a stored session's calls into traces again, also with another builder. Runs nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from polar.cli.options import JsonOption, RunOption, SessionArgument, options_of
from polar.cli.output import console, counted, number, print_json, print_table, visible

if TYPE_CHECKING:
    from polar.runs.stored import StoredSession
    from polar.types import Spec, Trajectory


LONGEST_NAME = 200
"""Characters of a file name, without prefix and suffix."""


def replay(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    session: SessionArgument,
    builder: Annotated[str | None, typer.Option(help="The builder; by default the task's own.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the builder, as key=value; drift=heal is one.")
    ] = None,
    run: RunOption = None,
    save: Annotated[
        bool, typer.Option("--save", help="Write traces.BUILDER.msgpack beside the original.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Build a stored session's traces again from its calls; nothing is run."""
    from polar.runs.stored import load_session, runs_dir_of
    from polar.store.trajectories import write_trajectory

    options = options_of(option or [])
    stored = load_session(runs_dir_of(ctx.obj), run, session)
    spec = _spec(stored, builder, options)
    rebuilt = _build(stored, spec)
    saved = _path_for(stored, spec) if save else None
    if saved is not None:
        write_trajectory(saved, rebuilt)
    report = _report(stored, spec, rebuilt, saved)
    print_json(report) if json else _print_report(report)


def _spec(stored: StoredSession, builder: str | None, options: dict[str, Any]) -> Spec:
    from polar.types import Spec

    own = stored.task.builder
    if builder is None or builder == own.name:
        return Spec(name=own.name, options=own.options | options)
    return Spec(name=builder, options=options)


def _build(stored: StoredSession, spec: Spec) -> Trajectory:
    from polar import registry
    from polar.errors import boundary

    made = registry.make("builder", spec)
    with boundary("builder"):
        return made.build(stored.session_id, stored.calls)


def _path_for(stored: StoredSession, spec: Spec) -> Path:
    """Named after the builder, and after its options if they differ from the task's."""
    own = stored.task.builder
    chosen = {} if spec == own else spec.options
    parts = [spec.name, *(f"{key}-{value}" for key, value in sorted(chosen.items()))]
    name = ".".join(re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-") for part in parts)
    return stored.folder / f"traces.{name[:LONGEST_NAME]}.msgpack"


def _report(stored: StoredSession, spec: Spec, rebuilt: Trajectory, saved: Path | None) -> dict[str, Any]:
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
                "context_exact": trace.context_exact,
            }
            for trace in rebuilt.traces
        ],
        "saved": str(saved) if saved else None,
    }


def _stored_statistics(stored: StoredSession) -> dict[str, Any] | None:
    if stored.result is not None:
        return stored.result.statistics.model_dump(mode="json")
    trajectory = stored.trajectory
    return trajectory.statistics if trajectory else None


def _print_report(report: dict[str, Any]) -> None:
    before: dict[str, Any] = report["stored"] or {}
    after: dict[str, Any] = report["rebuilt"]
    out = console()
    options = "".join(f" {visible(f'{key}={value}')}" for key, value in report["builder"]["options"].items())
    title = f"session {report['session_id']}  run {report['run_id']}  builder {report['builder']['name']}{options}"
    out.print(f"{title}\n")
    rows = [
        (name.replace("_", " "), _cell(before.get(name)), _cell(after.get(name)), _change(before, after, name))
        for name in dict.fromkeys([*before, *after])
    ]
    print_table(["", "#stored", "#rebuilt", "#change"], rows)
    out.print()
    traces = [(str(index), *map(_cell, trace.values())) for index, trace in enumerate(report["traces"])]
    print_table(["#trace", "kind", "#prompt", "#response", "#trainable", "exact"], traces)
    if report["saved"]:
        out.print(f"\nsaved to {report['saved']}")


def _change(before: dict[str, Any], after: dict[str, Any], name: str) -> str:
    """The difference of two numbers; empty if they are equal or one is missing."""
    one, other = before.get(name), after.get(name)
    if one == other or not (isinstance(one, int | float) and isinstance(other, int | float)):
        return ""
    return f"{other - one:+d}" if isinstance(other - one, int) else f"{other - one:+.3f}"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return counted(cast("dict[str, int]", value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else number(value)
