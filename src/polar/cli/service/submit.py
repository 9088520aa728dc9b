"""`polar submit`: the tasks of a file handed to a rollout server, and if wished waited for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.output import print_json
from polar.cli.runs.run import EXIT_FAILED_SESSIONS
from polar.cli.service.remote import ServerOption, ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.types import SessionResult, TaskRequest, TaskStatus


def submit(
    tasks: Annotated[Path, typer.Argument(help="A task file: .toml, .json or .jsonl.")],
    server: ServerOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results and sum them up.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Give every task a new id, so that a file can be submitted again.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hand the tasks of a file to a rollout server.

    With --wait the exit codes are those of `polar run`: 0 when no session failed for a reason outside the policy,
    1 when some did, 2 when the input was refused. Ctrl-C ends the wait, not the tasks.
    """
    from polar.client import DEFAULT_URL
    from polar.data.tasks import read_tasks

    todo = _with_ids_to_send(read_tasks(tasks), fresh=fresh)
    taken = ask(server, lambda client: _submit(client, todo))
    address = server or DEFAULT_URL
    if wait:
        _wait_for(taken, address, json=json)
    elif json:
        print_json({"server": address, "tasks": [status.model_dump(mode="json") for status in taken]})
    else:
        _print_taken(taken, address)


def _with_ids_to_send(tasks: list[TaskRequest], *, fresh: bool) -> list[TaskRequest]:
    """Ids that the file does not give are made up anew each time: the server has seen those of other files."""
    from polar.data.tasks import named

    bare = [task.model_copy(update={"task_id": None}) for task in tasks]
    return [
        anonymous if fresh or named(anonymous, position) == task else task
        for position, (task, anonymous) in enumerate(zip(tasks, bare, strict=True), start=1)
    ]


async def _submit(client: PolarClient, tasks: list[TaskRequest]) -> list[TaskStatus]:
    """One after the other: they queue in the order of the file, and a refusal can say what went before it."""
    from polar.client import ServerError
    from polar.errors import PolarError

    taken: list[TaskStatus] = []
    for task in tasks:
        try:
            taken.append(await client.submit(task))
        except ServerError as error:
            hint = "; --fresh gives every task a new id" if error.status == 409 else ""
            before = f"; handed in before it: {', '.join(status.task_id for status in taken)}" if taken else ""
            raise PolarError(f"{error}{hint}{before}") from error
    return taken


def _print_taken(taken: list[TaskStatus], address: str) -> None:
    for status in taken:
        samples = f"{status.num_samples} {'session' if status.num_samples == 1 else 'sessions'}"
        typer.echo(f"task {status.task_id}: {samples}")
    typer.echo(f"\n`polar ls --server {address}` shows how they stand")


def _wait_for(taken: list[TaskStatus], address: str, *, json: bool) -> None:
    from polar.cli.runs.progress import RunProgress
    from polar.cli.runs.summary import print_summary, summary_json
    from polar.cli.service.remote_progress import watch_tasks

    results: list[SessionResult] = []
    progress = RunProgress(sum(status.num_samples for status in taken), quiet=json)
    task_ids = [status.task_id for status in taken]
    interrupted = False
    try:
        with progress:
            ask(address, lambda client: watch_tasks(client, task_ids, progress, results), patient=True)
    except KeyboardInterrupt:
        interrupted = True
    results.sort(key=lambda result: (task_ids.index(result.task_id), result.index))
    if json:
        values = [result.model_dump(mode="json") for result in results]
        print_json({"server": address, "tasks": task_ids, **summary_json(results), "results": values})
    elif results:
        print_summary(results)
    if interrupted:
        progress.console.print("the tasks go on at the server; `polar cancel ID --task` ends one", style="yellow")
        raise typer.Exit(130)
    if any(result.failure is not None and not result.failure.agent for result in results):
        raise typer.Exit(EXIT_FAILED_SESSIONS)
