"""`polar generate`: a data set of confirmed sessions, from a task file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from polar.cli.options import ConfigOption, JsonOption, TasksArgument, checked_config
from polar.cli.output import console, print_json, print_table, visible
from polar.cli.runs.run import stop_on_signals
from polar.cli.service.remote import ask
from polar.cli.task_choice import (
    FilterOption,
    HarnessesOption,
    LimitOption,
    SampleOption,
    ShardOption,
    choice_of,
)

if TYPE_CHECKING:
    from polar.cli.data.generate_progress import GenerateProgress
    from polar.config import Config
    from polar.runs.generate.attempts import TaskAttempts
    from polar.runs.generate.card import DataCard
    from polar.runs.generate.plan import GeneratePlan
    from polar.store.paths import RunPaths
    from polar.types import TaskRequest

EXIT_INTERRUPTED = 130
EXIT_NOTHING_ACCEPTED = 1

OutOption = Annotated[Path, typer.Option(help="Folder of the data; one that exists is continued.")]
AttemptsOption = Annotated[int, typer.Option(min=1, help="Sessions of a task at most.")]
WantedOption = Annotated[int, typer.Option(min=1, help="Confirmed sessions of a task; then it is done.")]
MinRewardOption = Annotated[float, typer.Option(help="The least reward of a confirmed session.")]
FailuresOption = Annotated[
    int, typer.Option(min=1, help="Give a task up after so many sessions that failed through infrastructure.")
]
SplitOption = Annotated[str, typer.Option(help="Shares of train and test, by whole repositories.")]
SplitByOption = Annotated[str, typer.Option(help="Key of the tasks' metadata that names the repository.")]
SeedOption = Annotated[int, typer.Option(help="Of the split, and of --sample.")]
FormatOption = Annotated[Literal["both", "sft", "tokens"], typer.Option(help="The format of the data.")]
FileOption = Annotated[Literal["jsonl", "parquet"], typer.Option(help="Files of --to tokens.")]
ServerOption = Annotated[
    str | None, typer.Option(envvar="POLAR_SERVER", help="Run the sessions at this rollout server.")
]
ConcurrencyOption = Annotated[
    int | None, typer.Option(min=1, help="Sessions that run at once.", show_default="pools.running of the config")
]


def generate(  # noqa: PLR0913 - each is an option of the command
    tasks: TasksArgument,
    out: OutOption,
    attempts: AttemptsOption = 4,
    wanted: WantedOption = 1,
    min_reward: MinRewardOption = 1.0,
    max_failures: FailuresOption = 3,
    split: SplitOption = "90/10",
    split_by: SplitByOption = "repo",
    seed: SeedOption = 0,
    to: FormatOption = "both",
    file: FileOption = "jsonl",
    concurrency: ConcurrencyOption = None,
    harness: HarnessesOption = None,
    filters: FilterOption = None,
    shard: ShardOption = None,
    sample: SampleOption = None,
    limit: LimitOption = None,
    config: ConfigOption = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """Make a data set for supervised fine-tuning: sessions that the evaluator confirms.

    Each task runs until --wanted of its sessions are confirmed, --attempts times
    at most. Only exact, trainable sessions go out, each once, by repository.

    The same command continues a folder: sessions that have ended never run again.
    Exit code 0: there is data. 1: no session was confirmed. 2: input refused.
    130: Ctrl-C, which writes the data of the sessions so far. With --server the
    sessions under way go on, and the same command takes their results.

        polar generate tasks.toml --out data --attempts 8 --wanted 2
        polar generate tasks.toml --out data --filter 'metadata.repo=owner/*'
    """
    from polar.runs.event_loop import run_apart
    from polar.runs.generate.folder import GenerateFolder
    from polar.runs.generate.plan import GeneratePlan, SplitRatio
    from polar.runs.running import tasks_of
    from polar.runs.task_sources import check_sources

    formats = ("sft", "tokens") if to == "both" else (to,)
    ratio = SplitRatio.of(split)
    plan = GeneratePlan(attempts, wanted, min_reward, max_failures, ratio, split_by, seed, formats, file)
    chosen = _with_concurrency(checked_config(config), concurrency)
    choice = choice_of(filters, sample, None if sample is None else seed, shard, limit, harness)
    todo = choice.of(tasks_of(tasks, None))
    if server is None:
        run_apart(check_sources(todo))
    else:  # paths of tasks are those of its nodes
        ask(server, lambda client: client.nodes())  # fails soon, before there is a folder
    with GenerateFolder(out).open(tasks) as paths:
        card, interrupted = _generate(chosen, paths, out, todo, plan, server, quiet=json)
    print_json(card.model_dump(mode="json")) if json else _print(card, out)
    raise typer.Exit(_exit_code(card, interrupted=interrupted))


def _exit_code(card: DataCard, *, interrupted: bool) -> int:
    if interrupted:
        return EXIT_INTERRUPTED
    return 0 if card.all.accepted else EXIT_NOTHING_ACCEPTED


def _with_concurrency(config: Config, concurrency: int | None) -> Config:
    if concurrency is None:
        return config
    return config.model_copy(update={"pools": config.pools.model_copy(update={"running": concurrency})})


def _generate(  # noqa: PLR0913
    config: Config,
    paths: RunPaths,
    out: Path,
    tasks: Sequence[TaskRequest],
    plan: GeneratePlan,
    server: str | None,
    *,
    quiet: bool,
) -> tuple[DataCard, bool]:
    """The card, and whether the user ended it early."""
    from polar.cli.data.export import command_line
    from polar.cli.data.generate_progress import GenerateProgress
    from polar.runs.event_loop import run_apart, run_served
    from polar.runs.generate.generate import accounts_of, write_folder

    accounts = run_apart(accounts_of(tasks, plan, paths))
    interrupted = False
    progress = GenerateProgress(accounts, plan, quiet=quiet)
    try:
        with progress:
            run_served(_run(config, paths, accounts, progress, server))
    except (KeyboardInterrupt, asyncio.CancelledError):
        interrupted = True
        progress.console.print("interrupted; writing the data of the sessions so far", style="yellow")
    return run_apart(write_folder(out, paths, config, accounts, plan, command_line())), interrupted


async def _run(
    config: Config,
    paths: RunPaths,
    accounts: list[TaskAttempts],
    progress: GenerateProgress,
    server: str | None,
) -> None:
    from polar.cli.service.remote import check_server
    from polar.client import PolarClient
    from polar.runs.generate.at_server import run_attempts_at
    from polar.runs.generate.generate import run_attempts

    stop_on_signals(progress.console)
    if server is None:
        await run_attempts(config, paths, accounts, progress)
    else:
        await check_server(server)
        async with PolarClient(server) as client:
            await run_attempts_at(client, config, paths, accounts, progress)


def _print(card: DataCard, out: Path) -> None:
    from polar.runs.generate.page import (
        REPOSITORY_COLUMNS,
        notes_of,
        origin_rows,
        repository_rows,
        split_table,
        spread_rows,
    )

    shown = console()
    columns = (REPOSITORY_COLUMNS[0], *(f"#{name}" for name in REPOSITORY_COLUMNS[1:-1]), REPOSITORY_COLUMNS[-1])
    print_table(columns, [tuple(map(visible, row)) for row in repository_rows(card)])
    shown.print()
    columns, rows = split_table(card)
    print_table((columns[0], *(f"#{name}" for name in columns[1:])), rows)
    shown.print()
    print_table(("per session", "#mean", "#p50", "#p90"), spread_rows(card))
    shown.print()
    print_table(("", ""), [(name, visible(value)) for name, value in origin_rows(card)])
    for note in notes_of(card):
        shown.print(f"\n{note}")
    shown.print(f"\nThe data and its card are in {out}")
