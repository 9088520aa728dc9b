"""Evaluation between steps: tasks that are never trained on, under one version of the weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec

from polar.client import PolarClient
from polar.errors import PolarError
from polar.trainers.evaluation import EvalReport, EvalSettings, Variant, VariantResults, report_of
from polar.trainers.grpo.config import TaskConfig
from polar.trainers.grpo.rollouts import cancel_tasks, commonest_failure
from polar.trainers.grpo.task_stream import TaskStream
from polar.types import SessionResult, TaskRequest


class EvaluatedSession(msgspec.Struct, frozen=True):
    """One session of an evaluation, for later questions."""

    number: int
    """Of its task."""
    family: str
    reward: float | None
    calls: int
    sampled_tokens: int
    failure: str = ""


class HeldOut:
    """The tasks are the same in every evaluation, so that two are compared task by task."""

    def __init__(self, client: PolarClient, stream: TaskStream, config: TaskConfig, output: Path) -> None:
        self._client = client
        self._stream = stream
        self._config = config
        self._folder = output / "evaluations"

    async def evaluate(
        self, name: str, run_id: str, on_progress: Callable[[int, int], None] = lambda _, __: None
    ) -> dict[str, float]:
        """`name`: of this evaluation. The report is kept under it; returns its figures. `on_progress`: sessions
        that have ended, and all. Raises `PolarError` if no session of it has a reward."""
        wanted = self._config.evaluate_tasks
        count = wanted if self._stream.size is None else min(wanted, self._stream.size)
        tasks = [
            self._stream.task(number, f"{run_id}-{name}-{number}", self._config.evaluate_samples)
            for number in range(count)
        ]
        try:
            results = await self._results(tasks, on_progress)
        except BaseException:
            await cancel_tasks(self._client, [str(task.task_id) for task in tasks])
            raise
        if all(result.reward is None for result in results):
            raise PolarError(f"no session of the evaluation {name} has a reward: {commonest_failure(results)}")
        numbers = {str(task.task_id): number for number, task in enumerate(tasks)}
        rows = sorted(
            (_row(tasks, numbers[result.task_id], result) for result in results), key=lambda row: row.number
        )
        names = {task_id: f"{number:05}" for task_id, number in numbers.items()}
        report = report_of([VariantResults(Variant(policy=name), results, names)], self._settings)
        self._keep(name, report, rows)
        return figures_of(report) | _by_family(rows)

    async def _results(
        self, tasks: list[TaskRequest], on_progress: Callable[[int, int], None]
    ) -> list[SessionResult]:
        submitted = await self._client.submit_many(tasks)
        sessions = sum(task.num_samples for task in tasks)
        results: list[SessionResult] = []
        on_progress(0, sessions)
        async for entry in self._client.results(task_ids=[status.task_id for status in submitted]):
            results.append(entry.result)
            on_progress(len(results), sessions)
        return results

    @property
    def _settings(self) -> EvalSettings:
        return EvalSettings(ks=tuple(sorted({1, self._config.evaluate_samples})))

    def _keep(self, name: str, report: EvalReport, rows: list[EvaluatedSession]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.json").write_text(report.model_dump_json(indent=1))
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        (self._folder / f"{name}.sessions.jsonl").write_bytes(lines)


def figures_of(report: EvalReport) -> dict[str, float]:
    """pass@k with its interval, and what else a curve shows."""
    found = report.variants[0]
    figures = {
        "sessions": float(found.sessions),
        "infrastructure": float(found.infrastructure),
        "reward": found.mean_reward or 0.0,
        "calls": found.mean_calls,
    }
    for rates in found.rates:
        figures[f"pass@{rates.k}"] = rates.pass_at.value
        figures[f"pass@{rates.k}_low"] = rates.pass_at.low
        figures[f"pass@{rates.k}_high"] = rates.pass_at.high
    return figures


def _row(tasks: list[TaskRequest], number: int, result: SessionResult) -> EvaluatedSession:
    failure = f"{result.failure.where}: {result.failure.type}" if result.failure else ""
    used = result.statistics
    family = str(tasks[number].metadata.get("family", ""))
    return EvaluatedSession(number, family, result.reward, used.calls, used.sampled_tokens, failure)


def _by_family(rows: list[EvaluatedSession]) -> dict[str, float]:
    """pass@1 of the tasks with the same `metadata.family`."""
    solved = defaultdict[str, list[bool]](list)
    for row in rows:
        if row.family:
            solved[row.family].append(row.reward is not None and row.reward >= 1.0)
    return {f"pass@1/{family}": sum(each) / len(each) for family, each in sorted(solved.items())}
