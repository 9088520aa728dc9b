"""Curves of trainers: each point once, however often it is reported, in both databases."""

from __future__ import annotations

from typing import Any

import pytest
from desk import Api, Desk

from polar.server.errors import NotFound
from polar.server.records import training
from polar.types import TrainingPoint, TrainingReport, TrainingRun


def point(step: int, reward: float, phase: str = "train", at: float = 1.0) -> dict[str, Any]:
    return {"step": step, "phase": phase, "at": at, "metrics": {"reward": reward}}


async def report(desk: Desk, *points: dict[str, Any], run_id: str = "r") -> TrainingRun:
    given = TrainingReport.model_validate({"points": points})
    return await desk.state.change(training.report, run_id, given)


async def curve(desk: Desk, after: int = 0, limit: int = 1000) -> list[tuple[str, int, float]]:
    page = await desk.state.read(training.page, "r", after, limit)
    return [(point.phase, point.step, point.metrics["reward"]) for point in page.points]


async def test_training_and_evaluation_are_kept_apart(desk: Desk) -> None:
    run = await report(desk, point(0, 0.1), point(0, 0.2, "eval"), point(1, 0.3))
    assert (run.points, run.last_step, run.started) == (3, 1, desk.clock.now)
    assert await curve(desk) == [("train", 0, 0.1), ("eval", 0, 0.2), ("train", 1, 0.3)]


async def test_a_repeated_report_changes_nothing(desk: Desk) -> None:
    first = await report(desk, point(1, 0.5))
    desk.clock.advance(10)
    assert await report(desk, point(1, 0.5, at=7.0)) == first
    assert await curve(desk) == [("train", 1, 0.5)]


async def test_a_step_done_again_replaces_the_older_one_and_is_seen_by_who_follows(desk: Desk) -> None:
    await report(desk, point(1, 0.1), point(2, 0.2), point(2, 0.9, "eval"))
    seen = (await desk.state.read(training.page, "r", 0, 1000)).cursor
    run = await report(desk, point(2, 0.25), point(3, 0.4), point(3, 0.5))
    assert (run.points, run.last_step) == (4, 3)
    assert await curve(desk, after=seen) == [("train", 2, 0.25), ("train", 3, 0.5)]
    assert await curve(desk) == [("train", 1, 0.1), ("eval", 2, 0.9), ("train", 2, 0.25), ("train", 3, 0.5)]
    assert await curve(desk, limit=1) == [("train", 1, 0.1)]


async def test_runs_are_listed_and_one_that_is_not_there_is_named(desk: Desk) -> None:
    assert await desk.state.read(training.listing, 10) == []
    for run_id in ("one", "two", "one"):
        await report(desk, point(int(desk.clock.now) % 100, 0.5), run_id=run_id)
        desk.clock.advance(1)
    assert [run.run_id for run in await desk.state.read(training.listing, 10)] == ["one", "two"]
    with pytest.raises(NotFound, match="no training run 'r'"):
        await curve(desk)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [point(-1, 0.5)],
        [point(1, 0.5, "test")],
        [{"step": 1, "metrics": {}}],
        [{"step": 1, "metrics": {"a\n": 1.0}}],
        [{"step": 1, "metrics": {"x" * 101: 1.0}}],
        [{"step": 1, "metrics": {f"m{number}": 1.0 for number in range(201)}}],
        [point(step, 0.5) for step in range(1001)],
    ],
    ids=["none", "negative", "phase", "empty", "name", "long", "many", "batch"],
)
async def test_what_is_no_point_is_refused(api: Api, points: list[dict[str, Any]]) -> None:
    answer = await api.ask("POST", "/v1/training/r/points", json={"points": points})
    assert answer.status == 422 and answer.detail
    assert await api.get("/v1/training") == []


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
async def test_a_value_that_is_no_finite_number_is_refused(api: Api, value: str) -> None:
    body = f'{{"points": [{{"step": 1, "metrics": {{"loss": {value}}}}}]}}'
    headers = {"Content-Type": "application/json"}
    assert (await api.ask("POST", "/v1/training/r/points", data=body, headers=headers)).status == 422


async def test_curves_over_http(api: Api) -> None:
    answer = await api.ask("POST", "/v1/training/r/points", json={"points": [point(1, 0.5)]})
    assert (answer.status, answer.body["points"]) == (200, 1)
    page = await api.get("/v1/training/r?after=0")
    assert [TrainingPoint.model_validate(one).metrics for one in page["points"]] == [{"reward": 0.5}]
    assert (await api.get(f"/v1/training/r?after={page['cursor']}"))["points"] == []
    assert (await api.ask("GET", "/v1/training/other")).status == 404
