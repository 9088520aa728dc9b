"""`polar tasks convert`: any task set as a task file of another form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.cli.data.tasks import EXIT_SKIPPED
from polar.cli.options import JsonOption
from polar.cli.output import console, print_json, print_table, visible
from polar.cli.task_choice import FilterOption, LimitOption, SampleOption, SeedOption, ShardOption, choice_of


def convert(  # noqa: PLR0913
    source: Annotated[Path, typer.Argument(help="A task file, a folder, or git+URL@REV#FOLDER.")],
    out: Annotated[Path, typer.Argument(help="The file to write: .toml, .jsonl or .parquet.")],
    filters: FilterOption = None,
    shard: ShardOption = None,
    sample: SampleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    json: JsonOption = False,
) -> None:
    """Write the tasks of a set as .toml, .jsonl or .parquet.

    Reading OUT gives the same tasks. Tasks that cannot run, and those that the
    form of OUT cannot hold, are listed with the reason.
    Exit codes: 0 if every task is in OUT, 1 if some are left out, 2 if SOURCE
    is refused.

        polar tasks convert tasks.toml tasks.parquet
        polar tasks convert rows/ easy.jsonl --filter 'metadata.level=easy'
    """
    from polar.data.task_writing import write_task_file
    from polar.data.tasks import read_task_set
    from polar.errors import ConfigError

    if out.exists() and not force:
        raise ConfigError(f"{out} exists; choose another name, or --force replaces it")
    found = read_task_set(source)
    chosen = choice_of(filters, sample, seed, shard, limit).of(found.tasks)
    left_out = [*found.skipped, *write_task_file(chosen, out)]
    written = len(chosen) - len(left_out) + len(found.skipped)
    if json:
        print_json({"out": str(out), "tasks": written, "skipped": [each._asdict() for each in left_out]})
    else:
        if left_out:
            print_table(("left out", "why"), [(visible(each.where), visible(each.why)) for each in left_out])
            console().print()
        console().print(f"{written} tasks in {out}" + (f", {len(left_out)} left out" if left_out else ""))
    if left_out:
        raise typer.Exit(EXIT_SKIPPED)
