"""`polar tasks`: what a task file holds and what of it cannot run (`ls`), and which tasks are sound (`check`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import ConfigOption, JsonOption
from polar.cli.output import (
    console,
    error_console,
    number,
    one_line,
    print_json,
    print_json_list,
    print_long_table,
    print_table,
    progress_bar,
    visible,
)
from polar.cli.task_choice import FilterOption, LimitOption, SampleOption, SeedOption, ShardOption, choice_of

if TYPE_CHECKING:
    from polar.config import Config
    from polar.data.task_sets import TaskSet
    from polar.runs.task_check import CheckedAttempt, CheckedTask
    from polar.types import TaskRequest

EXIT_SKIPPED = 1
EXIT_UNSOUND = 1

tasks = typer.Typer(no_args_is_help=True, help="Task files: list and check what they hold.")


@tasks.command("ls")
def ls(  # noqa: PLR0913
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A task file, a folder, or git+URL@REV#FOLDER.")],
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
    from polar.data.stored_tasks import set_origin

    skipped = [each._asdict() for each in found.skipped]
    rest = {"skipped": skipped, "origin": set_origin(found.tasks)}
    print_json_list("tasks", (task.model_dump(mode="json") for task in found.tasks), rest)


def _print_tables(found: TaskSet) -> None:
    from polar.data.stored_tasks import set_origin

    columns = ("task", "#samples", "harness", "runtime", "evaluator", "instruction")
    print_long_table(columns, lambda: map(_row, found.tasks))
    if found.skipped:
        console().print()
        skipped = [(visible(each.where), visible(each.why)) for each in found.skipped]
        print_table(("left out", "why"), skipped)
    sessions = sum(task.num_samples for task in found.tasks)
    out = f", {len(found.skipped)} left out" if found.skipped else ""
    console().print(f"\n{len(found.tasks)} tasks, {sessions} sessions{out}")
    if origin := set_origin(found.tasks):
        console().print(f"from {origin}")


def _row(task: TaskRequest) -> tuple[str, ...]:
    plugins = (task.harness.name, task.runtime.name, task.evaluator.name)
    return (task.task_id or "", str(task.num_samples), *plugins, one_line(task.instruction, 60))


@tasks.command("check")
def check(  # noqa: PLR0913
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A task file, a folder, or git+URL@REV#FOLDER.")],
    solutions: Annotated[
        Path | None, typer.Option(help="A folder with TASK_ID.sh or TASK_ID.patch, before the set's own.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Tasks that are checked at once.")] = 2,
    config: ConfigOption = None,
    filters: FilterOption = None,
    shard: ShardOption = None,
    sample: SampleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """Check that tasks can be solved, and are not solved by doing nothing.

    Needs no model. The solution of each task, and an empty attempt, are judged
    by the task's evaluator in the task's runtime. A task is sound if the
    solution earns 1.0 and the empty attempt 0.0. Exit code 0 if every task is
    sound, else 1.

        polar tasks check examples/harbor.toml
    """
    from polar import config as configuration
    from polar.data.tasks import read_task_set

    chosen = configuration.load(config)
    found = choice_of(filters, sample, seed, shard, limit).of(read_task_set(path).tasks)
    done, logs = _checked(path, found, solutions, chosen, ctx.obj or chosen.runs_dir, at_once, quiet=json)
    unsound = [each for each in done if each.problem]
    if json:
        values = [asdict(each) | {"problem": each.problem} for each in done]
        print_json({"tasks": values, "sound": len(done) - len(unsound), "logs": logs})
    else:
        rows = [
            (each.task_id, _reward(each.solution), _reward(each.empty), one_line(each.problem or "sound", 100))
            for each in done
        ]
        print_table(("task", "#solution", "#empty", "verdict"), rows)
        console().print(f"\n{len(done) - len(unsound)} of {len(done)} tasks are sound")
        if logs:
            console().print(f"logs of the attempts: {logs}")
    if unsound:
        raise typer.Exit(EXIT_UNSOUND)


def _checked(  # noqa: PLR0913
    path: Path,
    found: Sequence[TaskRequest],
    folder: Path | None,
    config: Config,
    runs_dir: Path,
    at_once: int,
    *,
    quiet: bool,
) -> tuple[list[CheckedTask], str | None]:
    """And where the logs are; None: they are removed, because every task is sound."""
    from polar.data.solutions import solutions_of
    from polar.runs.event_loop import run_apart
    from polar.runs.running import prepare_machine
    from polar.runs.task_check import CheckPlan, check_solutions
    from polar.runs.task_sources import check_sources
    from polar.runtimes.files.folders import remove_tree
    from polar.store.paths import RunPaths
    from polar.types import Spec

    run_apart(check_sources(found))
    plan = CheckPlan(solutions_of(path, found, folder), config.permits, at_once)
    no_agent = {"harness": Spec(name="shell", options={"command": "true"})}
    err = error_console(quiet=quiet)
    bare = [task.model_copy(update=no_agent) for task in found]
    run_apart(prepare_machine(bare, config.permits, err.print))
    paths = RunPaths.create(runs_dir)
    with progress_bar(err) as bar:
        task = bar.add_task("Checking", total=len(found))
        done = run_apart(check_solutions(found, plan, paths, lambda _: bar.advance(task)))
    if any(each.problem for each in done):
        return done, str(paths.root)
    remove_tree(paths.root)
    return done, None


def _reward(attempt: CheckedAttempt | None) -> str:
    return "" if attempt is None else number(attempt.reward, 2)
