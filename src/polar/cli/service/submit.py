"""`polar submit`: submits the tasks of a file to a rollout server, and waits for them on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.options import JsonOption, ServerOption, TasksArgument
from polar.cli.output import print_json
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.types import TaskRequest, TaskStatus


def submit(
    tasks: TasksArgument,
    server: ServerOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results and summarise them.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Give every task a new id, so that a file can be submitted again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Submit the tasks of a file to a rollout server.

    With --wait the exit codes are those of `polar run`: 0 if no session failed
    through infrastructure, 1 if some did, 2 if the input was refused.
    Ctrl-C ends the wait, not the tasks.
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
    """A task without an id in the file gets a new one each time: the default one may be taken at the server."""
    from polar.data.tasks import named

    bare = [task.model_copy(update={"task_id": None}) for task in tasks]
    return [
        anonymous if fresh or named(anonymous, position) == task else task
        for position, (task, anonymous) in enumerate(zip(tasks, bare, strict=True), start=1)
    ]


async def _submit(client: PolarClient, tasks: list[TaskRequest]) -> list[TaskStatus]:
    """In the order of the file. An error names the tasks that were submitted before it."""
    from polar.client import ServerError
    from polar.errors import PolarError

    taken: list[TaskStatus] = []
    for task in tasks:
        try:
            taken.append(await client.submit(task))
        except ServerError as error:
            hint = "; --fresh gives every task a new id" if error.status == 409 else ""
            before = f"; submitted before it: {', '.join(status.task_id for status in taken)}" if taken else ""
            raise PolarError(f"{error}{hint}{before}") from error
    return taken


def _print_taken(taken: list[TaskStatus], address: str) -> None:
    for status in taken:
        samples = f"{status.num_samples} {'session' if status.num_samples == 1 else 'sessions'}"
        typer.echo(f"task {status.task_id}: {samples}")
    typer.echo(f"\n`polar ls --server {address}` shows their progress")


def _wait_for(taken: list[TaskStatus], address: str, *, json: bool) -> None:
    from polar.cli.runs.progress import RunProgress
    from polar.cli.runs.summary import print_outcome
    from polar.cli.service.remote_progress import watch_tasks

    progress = RunProgress(taken, quiet=json)
    task_ids = [status.task_id for status in taken]
    interrupted = ""
    try:
        with progress:
            ask(address, lambda client: watch_tasks(client, task_ids, progress), patient=True)
    except KeyboardInterrupt:
        interrupted = "the tasks go on at the server; `polar cancel ID --task` ends one"
    print_outcome(progress.results, {"server": address, "tasks": task_ids}, json=json)
    progress.end(interrupted)
