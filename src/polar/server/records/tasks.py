"""Tasks: submitted together with all their sessions, and their status."""

from __future__ import annotations

import json
import secrets
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select

from polar.server.errors import Conflict
from polar.server.overview.outcome_columns import storable
from polar.server.overview.stage_counts import count_moves
from polar.server.records import groups
from polar.server.records.events import NewEvent, append
from polar.server.records.tables import sessions, tasks
from polar.server.retention.gaps import forget, unknown
from polar.server.scheduling import queue
from polar.server.state import Change
from polar.types import Stage, TaskRequest, TaskStatus


def named(task: TaskRequest) -> TaskRequest:
    return task if task.task_id else task.model_copy(update={"task_id": f"task-{secrets.token_hex(6)}"})


def submit(change: Change, task: TaskRequest) -> TaskStatus:
    """The task must have an id."""
    known = select(tasks.c.number).where(tasks.c.task_id == task.task_id)
    if change.connection.execute(known).first() is not None:
        raise Conflict(f"task_id: a task {task.task_id!r} already exists; choose another id, or none")
    forget(change, "task", str(task.task_id))
    change.connection.execute(insert(tasks).values(**_task_row(task), submitted=change.now))
    rows = [{**_session_row(task, index), "since": change.now} for index in range(task.num_samples)]
    change.connection.execute(insert(sessions), rows)
    count_moves(change, [(None, Stage.QUEUED.value)] * task.num_samples)
    groups.grow(change, task)
    queue.enqueue(change, task, change.connection.execute(known).scalar_one())
    data = {"num_samples": task.num_samples, "group_id": task.group_id}
    append(change, [NewEvent("task", task.task_id, data=data)])
    change.wakes.add("queue")
    change.detail |= {"task_id": task.task_id, "sessions": task.num_samples}
    return status(change.connection, str(task.task_id))


def _task_row(task: TaskRequest) -> dict[str, Any]:
    columns = task.model_dump(include={"task_id", "group_id", "num_samples", "callback_url"})
    return {**columns, "body": json.dumps(task.model_dump(mode="json")), "budgets": task.budgets.model_dump_json()}


def _session_row(task: TaskRequest, index: int) -> dict[str, Any]:
    return {
        "session_id": task.session_id(index),
        "task_id": task.task_id,
        "group_id": task.group_id,
        "index": index,
        "priority": task.priority,
        "harness": storable(task.harness.name),
        "runtime": storable(task.runtime.name),
    }


def status(connection: Connection, task_id: str) -> TaskStatus:
    found = _statuses(connection, select(tasks).where(tasks.c.task_id == task_id))
    if not found:
        raise unknown(connection, "task", task_id)
    ids = select(sessions.c.session_id).where(sessions.c.task_id == task_id).order_by(sessions.c.number)
    return found[0].model_copy(update={"session_ids": tuple(connection.execute(ids).scalars())})


def newest(connection: Connection, limit: int) -> list[TaskStatus]:
    return _statuses(connection, select(tasks).order_by(tasks.c.number.desc()).limit(limit))


def request_of(connection: Connection, task_id: str) -> TaskRequest:
    """As submitted, with its id."""
    body = connection.execute(select(tasks.c.body).where(tasks.c.task_id == task_id)).scalar_one()
    return TaskRequest.model_validate(json.loads(body))


def _statuses(connection: Connection, query: Select[Any]) -> list[TaskStatus]:
    rows = connection.execute(query).all()
    counts = (
        select(sessions.c.task_id, sessions.c.stage, func.count())
        .where(sessions.c.task_id.in_([row.task_id for row in rows]))
        .group_by(sessions.c.task_id, sessions.c.stage)
    )
    stages: dict[str, dict[str, int]] = {row.task_id: {} for row in rows}
    for task_id, stage, count in connection.execute(counts):
        stages[task_id][stage] = count
    return [
        TaskStatus(
            task_id=row.task_id,
            group_id=row.group_id,
            num_samples=row.num_samples,
            submitted=row.submitted,
            stages=stages[row.task_id],
            done=all(Stage(stage).final for stage in stages[row.task_id]),
        )
        for row in rows
    ]
