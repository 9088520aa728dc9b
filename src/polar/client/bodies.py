"""Bodies of requests: what a caller gives, checked before it is sent."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import orjson
from pydantic import ValidationError

from polar.client.results import WAIT_S
from polar.errors import ConfigError
from polar.types import Selection, TaskRequest, TrainingPoint, TrainingReport
from polar.types.service.training import MAX_POINTS


def selection(
    task_ids: Collection[str] | None, group_ids: Collection[str] | None, limit: int, allow_gap: bool
) -> Selection:
    try:
        return Selection(
            limit=limit,
            wait_s=WAIT_S,
            allow_gap=allow_gap,
            task_ids=None if task_ids is None else tuple(dict.fromkeys(task_ids)),
            group_ids=None if group_ids is None else tuple(dict.fromkeys(group_ids)),
        )
    except ValidationError as error:
        raise ConfigError(f"these cannot be followed: {_too_many(error) or _problems(error)}") from error


def batches(points: Iterable[TrainingPoint | Mapping[str, Any]]) -> Iterator[TrainingReport]:
    """All are checked before the first is sent."""
    try:
        checked = [TrainingPoint.model_validate(point) for point in points]
    except ValidationError as error:
        raise ConfigError(f"not a training point: {_problems(error)}") from error
    for start in range(0, len(checked), MAX_POINTS):
        yield TrainingReport(points=tuple(checked[start : start + MAX_POINTS]))


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
        raise ConfigError(f"not a task: {_problems(error)}") from error


def _too_many(error: ValidationError) -> str:
    """Empty: there are not too many."""
    for one in error.errors():
        if one["type"] == "too_long":
            length = one.get("ctx", {})
            return (
                f"{length['actual_length']} {one['loc'][0]}, and the server takes {length['max_length']} at once; "
                "follow parts of them one after the other, submit the tasks with a group_id and follow that, or "
                "follow everything from a cursor: after=..., without ids"
            )
    return ""


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
