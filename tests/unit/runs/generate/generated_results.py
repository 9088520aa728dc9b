"""Tasks and results as the parts of a generation see them."""

from __future__ import annotations

from typing import Any

from polar.types import Certificate, Failure, Score, SessionResult, Stage, TaskRequest, TrajectoryStatistics

BROKEN = Failure(where="runtime", type="Gone", message="the runtime is gone")


def a_task(task_id: str, **fields: Any) -> TaskRequest:
    return TaskRequest(task_id=task_id, instruction="Do it.", **fields)


def a_result(session_id: str, reward: float | None = 1.0, **fields: Any) -> SessionResult:
    task_id, _, index = session_id.rpartition("-")
    values = {
        "session_id": session_id,
        "task_id": task_id,
        "index": int(index),
        "attempt": 1,
        "stage": Stage.COMPLETED,
        "score": None if reward is None else Score(reward=reward),
        "statistics": TrajectoryStatistics(calls=2, trainable_tokens=5),
        "certificate": Certificate(
            builder="prefix_merging",
            calls=2,
            traces=1,
            sampled_tokens=5,
            trainable_tokens=5,
            dropped_tokens=0,
            calls_digest="",
            traces_digest="",
            exact=True,
        ),
        "versions": {"polar": "0.1.0", "harness": "1.2", "model": "tiny", "engine": "scripted 1"},
    }
    return SessionResult.model_validate(values | fields)
