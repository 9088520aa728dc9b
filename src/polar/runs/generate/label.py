"""Which attempt of which task a session of a generation is.

Run here, a session carries the ids of its task. At a server each attempt is a task of its own, and its metadata
says whose attempt it is.
"""

from __future__ import annotations

from pydantic import ValidationError

from polar.errors import ConfigError
from polar.runs.stored import StoredSession
from polar.types import Strict, TaskRequest, is_id

METADATA_KEY = "polar_generate"


class AttemptLabel(Strict):
    task: str
    index: int
    attempt: int = 1
    """A session that was cancelled at the server is submitted again."""
    group_id: str | None = None
    """The task's own."""

    @property
    def group(self) -> str:
        return self.group_id or self.task


def served_task(task: TaskRequest, label: AttemptLabel, run_id: str) -> TaskRequest:
    """As it is submitted. The same attempt of the same folder always has the same id, so whoever continues the
    folder finds it at the server."""
    again = f".{label.attempt}" if label.attempt > 1 else ""
    served = task.model_copy(
        update={
            "task_id": f"{label.task}.{run_id}.{label.index:03}{again}",
            "group_id": f"{label.group}.{run_id}",
            "num_samples": 1,
            "metadata": {**task.metadata, METADATA_KEY: label.model_dump(mode="json")},
        }
    )
    if not (is_id(served.session_id(0)) and is_id(served.group)):
        raise ConfigError(f"task_id {label.task!r} leaves no room for the name of the run; shorten it to 90")
    return served


def label_of_session(session: StoredSession) -> AttemptLabel:
    return label_of_task(session.task) or AttemptLabel(
        task=session.lease.session.task_id,
        index=session.lease.session.index,
        attempt=session.lease.session.attempt,
        group_id=session.task.group_id,
    )


def label_of_task(task: TaskRequest) -> AttemptLabel | None:
    """None: it was not submitted by a generation."""
    try:
        return AttemptLabel.model_validate(task.metadata.get(METADATA_KEY))
    except ValidationError:
        return None


def own_task(task: TaskRequest, num_samples: int) -> TaskRequest:
    """What `served_task` was made of; any other task with that number of samples."""
    label = label_of_task(task)
    if label is None:
        return task.model_copy(update={"num_samples": num_samples})
    metadata = {name: value for name, value in task.metadata.items() if name != METADATA_KEY}
    ids = {"task_id": label.task, "group_id": label.group_id}
    return task.model_copy(update=ids | {"num_samples": num_samples, "metadata": metadata})
