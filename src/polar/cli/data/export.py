"""`polar export`: a data set out of the sessions of a stored run or of a rollout server."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import console, counted, error_console, one_line, print_json, progress_bar

if TYPE_CHECKING:
    from polar.data.export.files import ExportFolder
    from polar.data.export.plan import ExportedGroup, ExportPlan
    from polar.runs.exported import ExportSource


RunArgument = Annotated[
    str | None, typer.Argument(help="A run's id, the beginning of it, or its folder; else the latest.")
]
ToOption = Annotated[
    Literal["sft", "tokens", "parquet", "atif", "jsonl"], typer.Option(help="The format of the data set.")
]
OutOption = Annotated[Path | None, typer.Option(help="Folder of the data set.", show_default="./RUN-FORMAT")]
MinRewardOption = Annotated[
    float | None,
    typer.Option(help="Only traces with at least this reward.", show_default="1.0 for sft and tokens"),
]
PairsOption = Annotated[
    bool, typer.Option("--pairs", help="Preference pairs of a group, in chat form (sft) or as tokens.")
]
EstimatorOption = Annotated[
    Literal["grpo", "rloo", "dr_grpo", "mean"], typer.Option(help="How rewards become advantages.")
]
FileOption = Annotated[Literal["jsonl", "parquet"], typer.Option(help="Files of --to tokens.")]
ArgumentsOption = Annotated[
    bool, typer.Option("--object-arguments", help="sft: arguments of tool calls as objects, as TRL wants them.")
]
TaskOption = Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")]
GroupOption = Annotated[list[str] | None, typer.Option(help="Only this group; may be repeated.")]
InexactOption = Annotated[
    bool, typer.Option("--allow-inexact", help="Also traces whose context is not what the engine had.")
]
UntrainableOption = Annotated[
    bool, typer.Option("--untrainable", help="Also sessions that may not be trained on.")
]
ShardRowsOption = Annotated[int, typer.Option(min=1, help="Rows in one file at most.")]
ShardBytesOption = Annotated[int, typer.Option(min=1, help="Bytes of rows in one file, about.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an older export.")]


def export(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    run: RunArgument = None,
    to: ToOption = "parquet",
    out: OutOption = None,
    min_reward: MinRewardOption = None,
    pairs: PairsOption = False,
    estimator: EstimatorOption = "grpo",
    file: FileOption = "jsonl",
    object_arguments: ArgumentsOption = False,
    task: TaskOption = None,
    group: GroupOption = None,
    allow_inexact: InexactOption = False,
    untrainable: UntrainableOption = False,
    shard_rows: ShardRowsOption = 100_000,
    shard_bytes: ShardBytesOption = 500_000_000,
    force: ForceOption = False,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Make a data set of a run's sessions, or of those at a rollout server.

    polar export --to sft          conversations that got the full reward
    polar export --to tokens       the same as token ids and labels
    polar export --to parquet      all trainable traces, with advantages
    polar export --to sft --pairs  better and worse answers to one prompt

    Only exact traces of trainable sessions go in, unless you ask for others. What
    was left out is counted by reason, here and in export.json beside the data.
    Sessions that have not ended are left out.
    """
    from polar.data.export.files import ExportFolder
    from polar.data.export.plan import ExportPlan

    plan = ExportPlan(
        to=to,
        min_reward=min_reward,
        allow_inexact=allow_inexact,
        untrainable=untrainable,
        estimator=estimator,
        pairs=pairs,
        file=file,
        object_arguments=object_arguments,
        task_ids=frozenset(task or ()),
        group_ids=frozenset(group or ()),
        shard_rows=shard_rows,
        shard_bytes=shard_bytes,
    )
    suffix = f"{to}{'-pairs' if pairs else ''}"
    if server is not None and run is None:  # a run is always local, even if POLAR_SERVER is set
        folder = ExportFolder(out or Path(f"server-{suffix}"), force=force)
        report = _from_server(server, plan, folder, quiet=json)
    else:
        report, folder = _from_run(ctx, run, plan, (out, suffix), force=force, quiet=json)
    print_json(report) if json else _print(report, folder.target)


def _from_run(
    ctx: typer.Context,
    which: str | None,
    plan: ExportPlan,
    place: tuple[Path | None, str],
    *,
    force: bool,
    quiet: bool,
) -> tuple[dict[str, Any], ExportFolder]:
    from polar.data.export.files import ExportFolder
    from polar.runs.event_loop import run_apart
    from polar.runs.exported import run_source
    from polar.runs.stored import load_run

    stored = load_run(which, runs_dir=ctx.obj)
    record = stored.record
    folder = ExportFolder(place[0] or Path(f"{stored.run_id}-{place[1]}"), force=force)
    about = {"run_id": record.run_id, "versions": record.versions, "command": command_line()}
    return run_apart(_export(run_source(stored, plan), plan, folder, about, quiet=quiet)), folder


def _from_server(server: str, plan: ExportPlan, folder: ExportFolder, *, quiet: bool) -> dict[str, Any]:
    from polar.cli.service.remote import connected
    from polar.runs.event_loop import run_apart
    from polar.runs.exported import server_source

    async def work() -> dict[str, Any]:
        async with connected(server, patient=True) as client:
            source = await server_source(client, plan)
            about = {"server": client.url, "command": command_line()}
            return await _export(source, plan, folder, about, quiet=quiet)

    return run_apart(work())


async def _export(
    source: ExportSource, plan: ExportPlan, folder: ExportFolder, about: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    from polar.data.export.export import export as write_data_set

    with progress_bar(error_console(quiet=quiet)) as bar:
        task = bar.add_task("Exporting sessions", total=source.sessions)

        def on_group(group: ExportedGroup) -> None:
            bar.advance(task, len(group.sessions) + group.unfinished)

        return await write_data_set(source.groups, plan, folder, about, on_group)


def command_line() -> str:
    return shlex.join(["polar", *sys.argv[1:]])


def _print(report: dict[str, Any], target: Path) -> None:
    out = console()
    what = "pairs" if report["plan"]["pairs"] else "rows"
    out.print(
        f"{report['rows']} {what} in {report['files']} files of {target}: {report['sessions']} sessions, "
        f"{report['traces']} traces, {report['trained_tokens']} trained tokens"
    )
    for name, reasons in report["left_out"].items():
        if reasons:
            out.print(f"{name} left out: {counted(reasons)}")
    for problem in report["problems"]:
        out.print(f"unreadable: {one_line(problem, 160)}")
    if not report["rows"]:
        out.print("the data set is empty; see the reasons above, and --min-reward, --untrainable, --allow-inexact")
