"""A plug-in that misbehaves costs its own session, whose result says what happened; neighbours go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rude_plugins import BLOCKING
from workshop import WRITE, Workshop, agent_task

from polar.data.source import TaskFileSource
from polar.node import Node
from polar.types import SessionResult, Stage, TaskRequest
from waiting import hang_limit, until


@pytest.fixture(autouse=True)
def blocked_threads_end() -> Iterator[None]:
    yield
    BLOCKING.end()


SCRIPT = [f"I write it. {WRITE}", "Done."]


def rude(kind: str, plugin: str, how: str = "", **fields: Any) -> TaskRequest:
    spec = {"name": f"rude_plugins:{plugin}", "options": {"how": how} if how else {}}
    return agent_task(task_id="rude", **{kind: spec}, **fields)


async def beside_a_good_one(workshop: Workshop, task: TaskRequest) -> SessionResult:
    """The rude session's result; the good one, and the node, are none the worse."""
    async with hang_limit():
        await workshop.run(SCRIPT, [task, agent_task(task_id="good")])
    assert workshop.results["good-0"].stage == Stage.COMPLETED
    assert workshop.leftovers() == []
    return workshop.results["rude-0"]


EVALUATORS = ["RudeEvaluator", "PlainEvaluator", "rude_function", "rude_coroutine"]


@pytest.mark.parametrize("plugin", EVALUATORS)
@pytest.mark.parametrize(
    ("how", "reward"), [("returns half", 0.5), ("returns True", 1.0), ("returns a whole number", 1.0)]
)
async def test_a_number_is_the_reward(workshop: Workshop, plugin: str, how: str, reward: float) -> None:
    result = await beside_a_good_one(workshop, rude("evaluator", plugin, how))
    assert result.stage == Stage.COMPLETED and result.score and result.score.reward == reward
    trajectory = workshop.trajectories["rude-0"]
    assert trajectory and trajectory.traces[0].reward == reward


@pytest.mark.parametrize("plugin", ["RudeEvaluator", "PlainEvaluator"])
@pytest.mark.parametrize(
    ("how", "kind", "told"),
    [
        ("exits", "SystemExit", "it called sys.exit(3)"),
        ("raises", "ZeroDivisionError", "division by zero"),
        ("raises a base exception", "Exhausted", "nothing is left"),
        ("returns None", "WrongScore", "returned None"),
        ("returns text", "WrongScore", "returned '1.0'"),
        ("returns NaN", "WrongScore", "returned nan"),
        ("returns an unchecked score", "WrongScore", "returned Score(reward=inf"),
        ("returns a list", "WrongScore", "returned [1.0]"),
    ],
)
async def test_an_evaluator_without_a_verdict_fails_its_session(
    workshop: Workshop, plugin: str, how: str, kind: str, told: str
) -> None:
    result = await beside_a_good_one(workshop, rude("evaluator", plugin, how))
    assert result.stage == Stage.FAILED and result.failure and result.score is None
    assert (result.failure.where, result.failure.type) == ("evaluator", kind) and told in result.failure.message
    assert not result.failure.agent and result.statistics.trainable_tokens > 0


@pytest.mark.parametrize("plugin", EVALUATORS)
async def test_an_evaluator_that_blocks_is_left_behind(
    workshop: Workshop, plugin: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = rude("evaluator", plugin, "blocks", budgets={"postrun_s": 3.0})
    result = await beside_a_good_one(workshop, task)
    assert result.stage == Stage.FAILED and result.failure
    assert (result.failure.where, result.failure.type) == ("postrun", "TimedOut")
    assert "evaluator: a plug-in did not return" in caplog.text


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exits", "sys.exit(3)"),
        ("raises", "division by zero"),
        ("returns None", "returned None; it must return a Trajectory"),
    ],
)
async def test_a_builder_that_gives_no_trajectory_fails_its_session(
    workshop: Workshop, how: str, told: str
) -> None:
    result = await beside_a_good_one(workshop, rude("builder", "RudeBuilder", how))
    assert result.stage == Stage.FAILED and result.failure and result.failure.where == "builder"
    assert told in result.failure.message and result.traces is None


async def test_a_builder_that_miscounts_in_words_fails_its_session(workshop: Workshop) -> None:
    result = await beside_a_good_one(workshop, rude("builder", "OnceBuilder"))
    assert result.stage == Stage.FAILED and result.failure and result.failure.where == "builder"


async def test_a_builder_that_blocks_is_left_behind(workshop: Workshop) -> None:
    result = await beside_a_good_one(
        workshop, rude("builder", "RudeBuilder", "blocks", budgets={"postrun_s": 3.0})
    )
    assert result.stage == Stage.FAILED and result.failure and result.failure.type == "TimedOut"


@pytest.mark.parametrize("method", ["__init__", "requirements", "profile", "launch"])
@pytest.mark.parametrize(("deed", "told"), [("exits", "sys.exit(3)"), ("raises", "division by zero")])
async def test_a_harness_class_that_breaks_fails_its_session(
    workshop: Workshop, method: str, deed: str, told: str
) -> None:
    result = await beside_a_good_one(workshop, rude("harness", "RudeHarness", f"{method}: {deed}"))
    assert result.stage == Stage.FAILED and result.failure
    assert result.failure.where == "harness" and told in result.failure.message


@pytest.mark.parametrize("method", ["requirements", "profile", "launch"])
async def test_a_harness_class_that_returns_nonsense_is_named(workshop: Workshop, method: str) -> None:
    result = await beside_a_good_one(workshop, rude("harness", "RudeHarness", f"{method}: returns a list"))
    assert result.stage == Stage.FAILED and result.failure and result.failure.where == "harness"
    assert f"{method}() returned" in result.failure.message


async def test_a_harness_class_that_blocks_is_left_behind(workshop: Workshop) -> None:
    task = rude("harness", "RudeHarness", "launch: blocks", budgets={"init_s": 3.0})
    result = await beside_a_good_one(workshop, task)
    assert result.failure and "under way: harness" in result.failure.message


async def test_a_runtime_that_exits_fails_its_session(workshop: Workshop) -> None:
    result = await beside_a_good_one(workshop, rude("runtime", "ExitingRuntime"))
    assert result.stage == Stage.FAILED and result.failure and result.failure.type == "SystemExit"


async def test_a_result_that_cannot_be_made_says_so(workshop: Workshop) -> None:
    result = await beside_a_good_one(workshop, rude("runtime", "WrongNotes"))
    assert result.stage == Stage.FAILED and result.failure and result.failure.where == "result"
    assert "notes" in result.failure.message


@pytest.mark.parametrize("plugin", ["RudeEvaluator", "PlainEvaluator"])
async def test_a_cancel_reaches_a_session_whose_evaluator_blocks(workshop: Workshop, plugin: str) -> None:
    async def cancel(node: Node, source: TaskFileSource) -> None:
        pipeline = node.pipeline(source)
        serving = asyncio.create_task(pipeline.serve())
        await until(lambda: BLOCKING.entered)
        assert pipeline.cancel("rude-0")
        async with hang_limit():
            await serving

    await workshop.run(SCRIPT, [rude("evaluator", plugin, "blocks")], during=cancel)
    assert workshop.only.stage == Stage.CANCELLED and workshop.only.statistics.trainable_tokens > 0


async def test_a_cancel_cancels_an_evaluator_that_waits(workshop: Workshop, tmp_path: Path) -> None:
    async def cancel(node: Node, source: TaskFileSource) -> None:
        pipeline = node.pipeline(source)
        serving = asyncio.create_task(pipeline.serve())
        await until((tmp_path / "here").exists)
        assert pipeline.cancel("rude-0")
        async with hang_limit():
            await serving

    await workshop.run(SCRIPT, [rude("evaluator", "WaitingEvaluator", str(tmp_path))], during=cancel)
    assert workshop.only.stage == Stage.CANCELLED and (tmp_path / "cancelled").exists()


async def test_an_unexpected_error_is_logged_once_with_its_traceback(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await workshop.run(SCRIPT, [rude("evaluator", "RudeEvaluator", "raises")])
    (record,) = [r for r in caplog.records if r.exc_info]
    assert record.getMessage() == "session rude-0: evaluator failed" and record.levelno == logging.ERROR
    assert record.session_id == "rude-0"  # type: ignore[attr-defined]
    assert record.exc_info and record.exc_info[0] is ZeroDivisionError
