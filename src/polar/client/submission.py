"""Prepares a task for submission: checks it, and fixes its id so that it may be sent twice."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from polar.errors import ConfigError
from polar.types import TaskRequest


def with_id(task: TaskRequest | Mapping[str, Any]) -> tuple[TaskRequest, bool]:
    """The task with an id, and whether the id was generated here."""
    checked = task if isinstance(task, TaskRequest) else _checked(task)
    if checked.task_id is not None:
        return checked, False
    return checked.model_copy(update={"task_id": f"task-{uuid.uuid4().hex[:16]}"}), True


def same_task(sent: TaskRequest, known: TaskRequest) -> bool:
    """Compares their JSON: a tuple in the options comes back as a list."""
    return orjson.loads(to_json(sent)) == orjson.loads(to_json(known))


def to_json(task: TaskRequest) -> bytes:
    try:
        return task.model_dump_json().encode()
    except ValueError as error:
        raise ConfigError(f"task {task.task_id} has no JSON form: {error}") from error


def _checked(task: Mapping[str, Any]) -> TaskRequest:
    try:
        return TaskRequest.model_validate(task)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise ConfigError(f"not a task: {problems}") from error
