"""`polar ls`: runs, or the sessions of one; with a server, tasks, or the sessions of one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption, ServerOption
from polar.cli.output import clock, number, one_line, print_json, print_table, seconds
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.store.paths import RunPaths
    from polar.types import Session, SessionResult, SessionStatus, TaskStatus


def ls(
    ctx: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|TASK]", help="A run's id or the beginning of it; with --server a task's id."),
    ] = None,
    server: ServerOption = None,
    json: JsonOption = False,
) -> None:
    """List the runs, or the sessions of one run.

    With --server: the tasks at a rollout server, or the sessions of one task.
    """
    if server is not None:
        _ls_server(server, run, json=json)
        return
    from polar.runs.state import state_of
    from polar.runs.stored import read_run, runs_dir_of
    from polar.store.paths import find_run, list_runs

    runs_dir = runs_dir_of(ctx.obj)
    if run is None:
        rows = [_run_row(paths) for paths in list_runs(runs_dir)]
        print_json({"runs": rows}) if json else _print_runs(rows, str(runs_dir))
        return
    stored = read_run(find_run(runs_dir, run))
    sessions = [  # calls of a session that has not ended are counted too
        _session_row(session.lease.session, session.result)
        | {"calls": session.call_count, "sampled_tokens": session.sampled_tokens}
        for session in stored
    ]
    state = state_of(stored.paths, stored.record)
    if json:
        print_json({"run_id": stored.run_id, "state": state, "sessions": sessions})
        return
    _print_sessions(sessions)
    if state.goes_on and any(session.result is None for session in stored):
        typer.echo(f"\nthe run was {state}; `polar run --resume {stored.run_id}` continues it")


def _run_row(paths: RunPaths) -> dict[str, Any]:
    """A run that cannot be read is listed with the reason, not hidden."""
    from polar.cli.runs.summary import left_out_of_mean, mean_reward
    from polar.errors import PolarError
    from polar.runs.state import state_of
    from polar.runs.stored import read_run

    row: dict[str, Any] = {"run_id": paths.run_id, "state": None, "started": None, "finished": None, "tasks": None}
    row |= {"stages": {}, "stale": 0, "mean_reward": None, "left_out_of_mean": {}, "problem": None}
    try:
        record = paths.read_record()
        row |= {"state": state_of(paths, record), "started": record.started, "finished": record.finished}
        row["tasks"] = record.tasks
        stored = read_run(paths)
        row["stages"] = dict(Counter(session.stage.value for session in stored))
        row["stale"] = sum(result.stale for result in stored.results)
        row["mean_reward"] = mean_reward(stored.results)
        row["left_out_of_mean"] = left_out_of_mean(stored.results)
    except PolarError as error:
        row["problem"] = str(error)
    return row


def _session_row(session: Session | SessionStatus, result: SessionResult | None) -> dict[str, Any]:
    statistics = result.statistics if result else None
    counts = ("calls", "sampled_tokens", "traces", "trainable_tokens", "merge_rate")
    return {
        **session.model_dump(mode="json", include={"session_id", "task_id", "attempt", "stage"}),
        "reward": result.reward if result else None,
        "trainable": result is not None and result.trainable,
        "untrainable_reason": result.untrainable_reason if result else "not_final",
        **{name: getattr(statistics, name, None) for name in counts},
        "policy_updates": result.policy_updates if result else None,
        "stale": result is not None and result.stale,
        "failure": result.failure.model_dump(mode="json") if result and result.failure else None,
    }


def _ls_server(server: str, task_id: str | None, *, json: bool) -> None:
    if task_id is None:
        tasks = ask(server, lambda client: client.tasks())
        values = [task.model_dump(mode="json", exclude={"session_ids"}) for task in tasks]
        print_json({"server": server, "tasks": values}) if json else _print_tasks(tasks, server)
        return
    rows = ask(server, lambda client: _sessions_of_task(client, task_id))
    print_json({"server": server, "task_id": task_id, "sessions": rows}) if json else _print_sessions(rows)


async def _sessions_of_task(client: PolarClient, task_id: str) -> list[dict[str, Any]]:
    from polar.cli.service.remote_sessions import results_of

    task = await client.task(task_id)  # raises for an unknown task, whose list of sessions would only be empty
    results = await results_of(client, task_id)
    sessions = await client.sessions(task_id, limit=task.num_samples)
    return [_session_row(session, results.get(session.session_id)) for session in sessions]


def _print_tasks(tasks: list[TaskStatus], server: str) -> None:
    if not tasks:
        typer.echo(f"no tasks at {server}; `polar submit` submits some")
        return
    cells = [
        (
            task.task_id,
            task.group_id or "-",
            clock(task.submitted),
            number(task.num_samples),
            _stages(task.stages),
            "done" if task.done else "",
        )
        for task in tasks
    ]
    print_table(["task", "group", "submitted", "#samples", "sessions", ""], cells)


def _stages(counts: dict[str, int]) -> str:
    return " ".join(f"{stage} {count}" for stage, count in counts.items()) or "-"


def _print_runs(rows: list[dict[str, Any]], runs_dir: str) -> None:
    if not rows:
        typer.echo(f"no runs in {runs_dir}; `polar run` starts one")
        return
    cells = [
        (
            row["run_id"],
            clock(row["started"]) if row["started"] is not None else "-",
            _took(row),
            number(row["tasks"]),
            row["problem"] or _outcome(row),
            number(row["mean_reward"]),
        )
        for row in rows
    ]
    columns = ["run", "started", "#took", "#tasks", "sessions", "#reward"]
    print_table(columns, cells)


def _outcome(row: dict[str, Any]) -> str:
    left_out = sum(row["left_out_of_mean"].values())
    return (
        _stages(row["stages"])
        + (f", {row['stale']} stale" if row["stale"] else "")
        + (f", {left_out} left out of the mean" if left_out else "")
    )


def _took(row: dict[str, Any]) -> str:
    """Of a run that is not finished, its state."""
    if row["state"] != "finished":
        return row["state"] or "-"
    return seconds(row["finished"] - row["started"])


def _print_sessions(rows: list[dict[str, Any]]) -> None:
    cells = [
        (
            row["session_id"],
            row["stage"] + (", stale" if row["stale"] else ""),
            number(row["reward"]),
            number(row["calls"]),
            number(row["traces"]),
            number(row["trainable_tokens"]),
            number(row["merge_rate"]),
            row["untrainable_reason"].removeprefix("not_final"),
            one_line(f"{row['failure']['where']}: {row['failure']['message']}", 80) if row["failure"] else "",
        )
        for row in rows
    ]
    columns = ["session", "stage", "#reward", "#calls", "#traces", "#trainable", "#merge rate"]
    optional = ["#merge rate", "#traces", "#trainable"]
    print_table([*columns, "not trained on", "failure"], cells, optional=optional)
