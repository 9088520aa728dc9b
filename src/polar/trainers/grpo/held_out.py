"""Evaluation between steps: tasks that are never trained on, under one version of the weights."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec

from polar.client import PolarClient
from polar.trainers.evaluation import EvalReport, EvalSettings, Variant, VariantResults, report_of
from polar.trainers.grpo.config import TaskConfig
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

    async def evaluate(self, name: str, run_id: str) -> dict[str, float]:
        """`name`: of this evaluation. The report is kept under it; returns its figures."""
        tasks = [
            self._stream.task(number, f"{run_id}-{name}-{number}", self._config.evaluate_samples)
            for number in range(self._config.evaluate_tasks)
        ]
        submitted = await self._client.submit_many(tasks)
        results = list[SessionResult]()
        async for entry in self._client.results(task_ids=[status.task_id for status in submitted]):
            results.append(entry.result)
        report = report_of([VariantResults(Variant(policy=name), results, _numbers(tasks))], self._settings)
        self._keep(name, report, [_row(tasks, result) for result in results])
        return figures_of(report) | _by_family(tasks, results)

    @property
    def _settings(self) -> EvalSettings:
        return EvalSettings(ks=tuple(sorted({1, self._config.evaluate_samples})))

    def _keep(self, name: str, report: EvalReport, rows: list[EvaluatedSession]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.json").write_text(report.model_dump_json(indent=1))
        lines = sorted((row.number, msgspec.json.encode(row)) for row in rows)
        (self._folder / f"{name}.sessions.jsonl").write_bytes(b"\n".join(line for _, line in lines) + b"\n")


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


def _row(tasks: list[TaskRequest], result: SessionResult) -> EvaluatedSession:
    number = next(number for number, task in enumerate(tasks) if task.task_id == result.task_id)
    failure = f"{result.failure.where}: {result.failure.type}" if result.failure else ""
    used = result.statistics
    family = str(tasks[number].metadata.get("family", ""))
    return EvaluatedSession(number, family, result.reward, used.calls, used.sampled_tokens, failure)


def _numbers(tasks: list[TaskRequest]) -> dict[str, str]:
    """Task ids differ between evaluations; the number does not."""
    return {str(task.task_id): f"{number:05}" for number, task in enumerate(tasks)}


def _by_family(tasks: list[TaskRequest], results: list[SessionResult]) -> dict[str, float]:
    """pass@1 of the tasks with the same `metadata.family`."""
    family_of = {task.task_id: task.metadata.get("family") for task in tasks}
    solved = defaultdict[str, list[float]](list)
    for result in results:
        family = family_of.get(result.task_id)
        if family is not None:
            solved[str(family)].append(float(result.reward is not None and result.reward >= 1.0))
    return {f"pass@1/{family}": sum(values) / len(values) for family, values in sorted(solved.items())}
