"""`polar submit`: submits the tasks of a file to a rollout server, and waits for them on request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from polar.cli.options import JsonOption, SamplesOption, ServerOption, TasksArgument
from polar.cli.output import error_console, one_line, print_json_list
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

SHOWN_IDS = 10


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
    address = server or DEFAULT_URL
    if wait:
        _submit_and_wait(todo, address, by_harness=bool(harness), json=json)
    elif json:
        _submit_as_json(todo, address)
    else:
        ask(server, lambda client: _submit(client, todo, lambda each: typer.echo(str(each))), patient=True)
        typer.echo(f"\n`polar ls --server {address}` shows their progress")
        _print_if_no_node(address)


def tasks_to_send(tasks: Sequence[TaskRequest], choice: TaskChoice, *, fresh: bool) -> Iterable[TaskRequest]:
    from polar.store.paths import new_run_id

    suffix = new_run_id() if fresh else ""
    if choice.harnesses:  # ids are made of the harness's name
        return choice.of(tasks, suffix)
    positions = choice.selection.positions(tasks)
    return (_with_id_to_send(tasks[position], position + 1, suffix) for position in positions)


def _with_id_to_send(task: TaskRequest, position: int, suffix: str) -> TaskRequest:
    """A task without an id in the file gets a new one each time: the default one may be taken at the server.
    `suffix`: makes an id new that the server may have."""
    from polar.data.tasks import named
    from polar.trainers.eval_plan import joined_id

    if suffix:
        return task.model_copy(update={"task_id": joined_id((str(task.task_id), suffix))})
    anonymous = task.model_copy(update={"task_id": None})
    return anonymous if named(anonymous, position) == task else task


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
        waits = f"; waits: {one_line(status.waits, 300)}" if status.waits.startswith("no ") else ""
        count = f"{status.num_samples} {'session' if status.num_samples == 1 else 'sessions'}"
        return f"task {status.task_id}: {count}{waits}"


async def _submit(
    client: PolarClient, tasks: Iterable[TaskRequest], on_taken: Callable[[SubmittedTask], None]
) -> None:
    """In the order of the file, one at a time. An error names the last tasks that were submitted before it."""
    from polar.client import ServerError
    from polar.errors import PolarError
    from polar.runs.served import same_task

    new, last = 0, deque[str](maxlen=SHOWN_IDS)
    for task in tasks:
        try:
            taken = SubmittedTask(await client.submit(task), was_there=False)
            new += 1
            last.append(taken.status.task_id)
        except ServerError as error:
            if error.status != 409 or (known := await same_task(client, task)) is None:
                hint = " with another content; --fresh gives every task a new id" if error.status == 409 else ""
                more = f"{new - len(last)} tasks and " if new > len(last) else ""
                before = f"; submitted before it: {more}{', '.join(last)}" if new else ""
                raise PolarError(f"{error}{hint}{before}") from error
            taken = SubmittedTask(known, was_there=True)
        on_taken(taken)


def _submit_as_json(todo: Iterable[TaskRequest], address: str) -> None:
    """Printed when all are submitted: a task that the server refuses leaves no half of a JSON."""
    import orjson

    from polar.data.row_store import RowStore

    there: list[str] = []
    statuses = RowStore()

    def on_taken(taken: SubmittedTask) -> None:
        statuses.add(taken.status.task_id, taken.status.model_dump_json().encode())
        if taken.was_there:
            there.append(taken.status.task_id)

    ask(address, lambda client: _submit(client, todo, on_taken), patient=True)
    print_json_list("tasks", map(orjson.loads, statuses), {"server": address, "already_there": there})


def _submit_and_wait(todo: Iterable[TaskRequest], address: str, *, by_harness: bool, json: bool) -> None:
    asyncio.run(check_server(address))
    taken: list[TaskStatus] = []
    ask(address, lambda client: _submit(client, todo, lambda each: taken.append(each.status)), patient=True)
    names = zip(taken, harness_of(todo).values(), strict=True) if by_harness else ()
    _wait_for(taken, address, {status.task_id: name for status, name in names}, json=json)


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
