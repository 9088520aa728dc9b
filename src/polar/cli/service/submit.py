"""`polar submit`: submits the tasks of a file to a rollout server, and waits for them on request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from polar.cli.options import JsonOption, SamplesOption, ServerOption, TasksArgument
from polar.cli.output import error_console, print_json
from polar.cli.service.remote import ask, check_server
from polar.cli.task_choice import (
    FilterOption,
    HarnessesOption,
    LimitOption,
    SampleOption,
    SeedOption,
    ShardOption,
    choice_of,
    harness_of,
)

if TYPE_CHECKING:
    from polar.cli.task_choice import TaskChoice
    from polar.client import PolarClient
    from polar.types import TaskRequest, TaskStatus


def submit(  # noqa: PLR0913
    tasks: TasksArgument,
    server: ServerOption = None,
    samples: SamplesOption = None,
    harness: HarnessesOption = None,
    filters: FilterOption = None,
    shard: ShardOption = None,
    sample: SampleOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results and summarise them.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="New ids, of each task's name and the time: submit a file again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Submit the tasks of a file to a rollout server.

    A task that the server has already, with the same content, is not submitted
    again: its finished sessions stay finished. With another content it is
    refused.

    With --wait the exit codes are those of `polar run`: 0 if no session failed
    through infrastructure, 1 if some did, 2 if the input was refused.
    Ctrl-C ends the wait, not the tasks.
    """
    from polar.client import DEFAULT_URL
    from polar.runs.running import tasks_of

    choice = choice_of(filters, sample, seed, shard, limit, harness)
    todo = tasks_to_send(tasks_of(tasks, samples), choice, fresh=fresh)
    if wait:
        asyncio.run(check_server(server or DEFAULT_URL))
    submitted = ask(server, lambda client: _submit(client, todo), patient=True)
    taken = [each.status for each in submitted]
    address = server or DEFAULT_URL
    if wait:
        by_harness = zip(taken, harness_of(todo).values(), strict=True) if harness else ()
        _wait_for(taken, address, {status.task_id: name for status, name in by_harness}, json=json)
    elif json:
        there = [each.status.task_id for each in submitted if each.was_there]
        tasks_json = [status.model_dump(mode="json") for status in taken]
        print_json({"server": address, "tasks": tasks_json, "already_there": there})
    else:
        _print_taken(submitted, address)
        _print_if_no_node(address)


def tasks_to_send(tasks: list[TaskRequest], choice: TaskChoice, *, fresh: bool) -> list[TaskRequest]:
    from polar.data.tasks import named
    from polar.store.paths import new_run_id
    from polar.trainers.eval_plan import joined_id

    suffix = new_run_id() if fresh else ""
    if choice.harnesses:  # ids are made of the harness's name
        return choice.of(tasks, suffix)
    chosen = choice.of(tasks)
    if fresh:
        return [task.model_copy(update={"task_id": joined_id((str(task.task_id), suffix))}) for task in chosen]
    # A task without an id in the file gets a new one each time: the default one may be taken at the server.
    bare = {task.task_id: task.model_copy(update={"task_id": None}) for task in tasks}
    numbered = enumerate(tasks, start=1)
    unnamed = {task.task_id for position, task in numbered if named(bare[task.task_id], position) == task}
    return [bare[task.task_id] if task.task_id in unnamed else task for task in chosen]


class SubmittedTask(NamedTuple):
    status: TaskStatus
    was_there: bool
    """The server had this very task before."""

    def __str__(self) -> str:
        from polar.types import Stage

        status = self.status
        if self.was_there:
            ended = sum(count for stage, count in status.stages.items() if Stage(stage).final)
            return f"task {status.task_id}: already there, {ended} of {status.num_samples} sessions finished"
        return (
            f"task {status.task_id}: {status.num_samples} {'session' if status.num_samples == 1 else 'sessions'}"
        )


async def _submit(client: PolarClient, tasks: list[TaskRequest]) -> list[SubmittedTask]:
    """In the order of the file. An error names the tasks that were submitted before it."""
    from polar.client import ServerError
    from polar.errors import PolarError

    taken: list[SubmittedTask] = []
    for task in tasks:
        try:
            taken.append(SubmittedTask(await client.submit(task), was_there=False))
        except ServerError as error:
            if error.status == 409 and (known := await _same_task(client, task)):
                taken.append(SubmittedTask(known, was_there=True))
                continue
            hint = " with another content; --fresh gives every task a new id" if error.status == 409 else ""
            new = [each.status.task_id for each in taken if not each.was_there]
            before = f"; submitted before it: {', '.join(new)}" if new else ""
            raise PolarError(f"{error}{hint}{before}") from error
    return taken


async def _same_task(client: PolarClient, task: TaskRequest) -> TaskStatus | None:
    """The server's task of this id, if it has the same content. JSON is compared: a tuple comes back as a list."""
    import orjson

    status = await client.task(str(task.task_id))
    known = (await client.lease(status.session_ids[0])).task
    sent, had = (orjson.loads(each.model_dump_json()) for each in (task, known))
    return status if sent == had else None


def _print_taken(taken: list[SubmittedTask], address: str) -> None:
    for each in taken:
        typer.echo(str(each))
    typer.echo(f"\n`polar ls --server {address}` shows their progress")


def _print_if_no_node(address: str) -> None:
    """The tasks would wait, and nothing would say why."""
    from polar.errors import PolarError

    try:
        asyncio.run(check_server(address))
    except PolarError as error:
        error_console().print(str(error), style="yellow", soft_wrap=True)


def _wait_for(taken: list[TaskStatus], address: str, harness_of: dict[str, str], *, json: bool) -> None:
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
    origin = {"server": address, "tasks": task_ids}
    print_outcome(progress.results, origin, json=json, harness_of=harness_of)
    progress.end(interrupted)
