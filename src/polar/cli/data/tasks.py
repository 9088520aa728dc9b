"""`polar tasks ls FILE`: what a task file holds, and what of it cannot run, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import JsonOption
from polar.cli.output import console, one_line, print_json, print_table, visible
from polar.cli.task_choice import FilterOption, LimitOption, SampleOption, SeedOption, ShardOption, choice_of

if TYPE_CHECKING:
    from polar.data.task_sets import TaskSet

EXIT_SKIPPED = 1

tasks = typer.Typer(no_args_is_help=True, help="Task files: list and check what they hold.")


@tasks.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Keeps `ls` a command of its own while it is the only one."""


@tasks.command("ls")
def ls(  # noqa: PLR0913
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A task file: TOML, JSON or JSONL.")],
    filters: FilterOption = None,
    shard: ShardOption = None,
    sample: SampleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """Check a task file and list its tasks; runs nothing.

    Rows and folders of a task set that cannot run are listed with the reason.
    Exit codes: 0 if every task can run, 1 if some are left out, 2 if the file
    is refused.

        polar tasks ls examples/demo.toml
        polar tasks ls tasks.toml --filter 'metadata.repo=owner/*'
    """
    from polar.data.tasks import read_task_set

    choice = choice_of(filters, sample, seed, shard, limit)
    found = read_task_set(path)
    found = found._replace(tasks=choice.of(found.tasks))
    if json:
        _print_json(found)
    else:
        _print_tables(found)
    if found.skipped:
        raise typer.Exit(EXIT_SKIPPED)


def _print_json(found: TaskSet) -> None:
    print_json(
        {
            "tasks": [task.model_dump(mode="json") for task in found.tasks],
            "skipped": [each._asdict() for each in found.skipped],
        }
    )


def _print_tables(found: TaskSet) -> None:
    columns = ("task", "#samples", "harness", "runtime", "evaluator", "instruction")
    rows = [
        (
            task.task_id or "",
            str(task.num_samples),
            task.harness.name,
            task.runtime.name,
            task.evaluator.name,
            one_line(task.instruction, 60),
        )
        for task in found.tasks
    ]
    print_table(columns, rows)
    if found.skipped:
        console().print()
        skipped = [(visible(each.where), visible(each.why)) for each in found.skipped]
        print_table(("left out", "why"), skipped)
    sessions = sum(task.num_samples for task in found.tasks)
    out = f", {len(found.skipped)} left out" if found.skipped else ""
    console().print(f"\n{len(found.tasks)} tasks, {sessions} sessions{out}")
