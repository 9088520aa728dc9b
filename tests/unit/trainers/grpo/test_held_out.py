"""Evaluation between steps: as many tasks as there are, and an error if none of their sessions has a reward."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from polar.client import PolarClient
from polar.errors import PolarError
from polar.trainers.grpo.config import TaskConfig
from polar.trainers.grpo.held_out import HeldOut
from polar.trainers.grpo.task_stream import TaskStream
from polar.types import Failure, ResultEntry, Score, SessionResult, Stage, TaskRequest, TaskStatus

pytestmark = pytest.mark.check


class FakeClient:
    """Every session ends at once, with this reward; None: the runtime failed."""

    def __init__(self, reward: float | None) -> None:
        self._reward = reward

    async def submit_many(self, tasks: list[TaskRequest]) -> list[TaskStatus]:
        return [
            TaskStatus(task_id=str(task.task_id), num_samples=1, submitted=0.0, stages={}, done=True)
            for task in tasks
        ]

    async def results(self, *, task_ids: Collection[str]) -> AsyncGenerator[ResultEntry]:
        for cursor, task_id in enumerate(task_ids, 1):
            yield ResultEntry(cursor=cursor, result=self._result(task_id))

    async def cancel_task(self, task_id: str) -> int:
        return 0

    def _result(self, task_id: str) -> SessionResult:
        gone = Failure(where="runtime", type="Gone", message="no bwrap here")
        return SessionResult(
            session_id=f"{task_id}-0",
            task_id=task_id,
            index=0,
            attempt=1,
            stage=Stage.COMPLETED if self._reward is not None else Stage.FAILED,
            score=None if self._reward is None else Score(reward=self._reward),
            failure=gone if self._reward is None else None,
        )


def held_out(folder: Path, reward: float | None, **config: Any) -> HeldOut:
    (folder / "tasks.toml").write_text("\n".join(f'[[tasks]]\ninstruction = "Do {n}."\n' for n in range(3)))
    client = cast("PolarClient", FakeClient(reward))
    return HeldOut(client, TaskStream("tasks.toml", folder), TaskConfig(train="tasks.toml", **config), folder)


async def test_a_file_with_fewer_tasks_is_not_repeated(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    figures = await held_out(tmp_path, 1.0).evaluate("step-0", "r", lambda *progress: seen.append(progress))
    assert (figures["sessions"], figures["pass@1"]) == (3.0, 1.0)
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert (await held_out(tmp_path, 0.0, evaluate_tasks=2).evaluate("step-0", "r"))["sessions"] == 2.0


async def test_an_evaluation_without_a_verdict_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(
        PolarError, match=r"no session of the evaluation step-0 has a reward: runtime: no bwrap here"
    ):
        await held_out(tmp_path, None).evaluate("step-0", "r")
