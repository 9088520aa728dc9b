"""Whether a session may be trained on: one rule, read off its result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polar.audit.certificate import certify
from polar.store.seal import seal_of
from polar.types import (
    Certificate,
    Failure,
    Score,
    ScorePart,
    SessionResult,
    Stage,
    TaskRequest,
    Trajectory,
    TrajectoryStatistics,
)

EXACT = certify((), Trajectory(session_id="add-0", builder="prefix_merging"))
INFRASTRUCTURE = Failure(where="engine", type="EngineError", message="gone")
AGENT = Failure(where="run", type="TimedOut", message="too long", agent=True)
TOKENS = TrajectoryStatistics(trainable_tokens=5)


def a_result(**fields: Any) -> SessionResult:
    values: dict[str, Any] = {
        "session_id": "add-0",
        "task_id": "add",
        "index": 0,
        "attempt": 1,
        "stage": Stage.COMPLETED,
        "score": Score(reward=1.0, trace_rewards=(1.0,)),
        "statistics": TOKENS,
        "certificate": EXACT,
    }
    return SessionResult(**(values | fields))


def inexact() -> Certificate:
    return EXACT.model_copy(update={"exact": False, "inexact_traces": 1})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"stage": Stage.TIMED_OUT, "failure": AGENT}, ""),
        ({"stage": Stage.FAILED, "failure": AGENT, "score": Score(reward=0.0)}, ""),
        ({"stage": Stage.RUNNING}, "not_final"),
        ({"stale": True}, "stale"),
        ({"stage": Stage.CANCELLED, "stale": True, "failure": INFRASTRUCTURE}, "stale"),
        ({"stage": Stage.CANCELLED}, "cancelled"),
        ({"stage": Stage.FAILED, "failure": INFRASTRUCTURE}, "infrastructure"),
        ({"score": None}, "no_reward"),
        ({"score": Score(reward=None)}, "no_reward"),
        ({"statistics": TrajectoryStatistics()}, "no_trainable_tokens"),
        ({"statistics": TrajectoryStatistics(dropped={"no_token_ids": 0})}, "no_token_ids"),
        ({"statistics": TOKENS.model_copy(update={"dropped": {"no_token_ids": 0}})}, "no_token_ids"),
        ({"certificate": None}, "not_certified"),
        ({"certificate": inexact()}, "not_exact"),
    ],
    ids=str,
)
def test_what_may_be_trained_on(fields: dict[str, Any], reason: str) -> None:
    result = a_result(**fields)
    assert (result.trainable, result.untrainable_reason) == (not reason, reason)


def test_a_score_that_infrastructure_spoilt_has_no_reward_that_counts() -> None:
    assert a_result(failure=INFRASTRUCTURE).reward is None
    assert a_result(failure=AGENT).reward == 1.0
    assert a_result(score=None).reward is None


def test_json_says_it_and_what_it_says_is_not_believed() -> None:
    written = json.loads(a_result(failure=INFRASTRUCTURE).model_dump_json())
    assert (written["trainable"], written["untrainable_reason"]) == (False, "infrastructure")
    claimed = SessionResult.model_validate(written | {"trainable": True, "untrainable_reason": ""})
    assert not claimed.trainable
    assert SessionResult.model_validate_json(json.dumps(written)) == a_result(failure=INFRASTRUCTURE)


def test_a_result_that_names_no_group_is_in_its_tasks() -> None:
    assert a_result().group_id == "add"
    assert a_result(group_id="batch").group_id == "batch"


STORED = {
    "session_id": "add-0",
    "task_id": "add",
    "group_id": "add",
    "index": 0,
    "attempt": 1,
    "stage": "TIMED_OUT",
    "score": {"reward": 0.0},
    "failure": {"where": "run", "type": "TimedOut", "message": "too long", "policy": True},
    "seal": "77976d1f5068fca805bfeb12f360dd12",
}
"""Written and sealed when the attribute was called `policy`, for the task below."""


@pytest.mark.parametrize("key", ["policy", "agent"])
def test_a_failure_reads_both_keys_and_writes_the_stored_one(key: str) -> None:
    failure = Failure.model_validate({"where": "run", "type": "TimedOut", "message": "too long", key: True})
    assert failure == AGENT and failure.agent and not failure.infrastructure
    for written in (failure.model_dump(mode="json"), json.loads(failure.model_dump_json())):
        assert written == STORED["failure"]


def test_the_seal_of_an_older_result_still_holds() -> None:
    result = SessionResult.model_validate(STORED)
    assert result.failure == AGENT
    assert seal_of(result, TaskRequest(task_id="add", instruction="add")) == result.seal


PARTS = Score(
    reward=0.35,
    parts={
        "tests": ScorePart(reward=0.0, weight=0.7, reasons=("2 of 3 tests fail",), metrics={"held": 1.0}),
        "style": ScorePart(reward=None, weight=0.3, metrics={"lines": float("nan")}),
    },
)


def test_a_score_keeps_its_parts_and_none_apart_from_zero() -> None:
    result = a_result(score=PARTS.finite())
    read = SessionResult.model_validate_json(result.model_dump_json())
    assert read == result and read.score is not None
    assert [part.reward for part in read.score.parts.values()] == [0.0, None]
    assert read.score.parts["style"].reasons == ("metric lines was not a finite number",)


def test_parts_are_under_the_seal() -> None:
    task = TaskRequest(task_id="add", instruction="x")
    kind = PARTS.parts["tests"].model_copy(update={"reward": 1.0})
    changed = PARTS.model_copy(update={"parts": PARTS.parts | {"tests": kind}})
    assert seal_of(a_result(score=PARTS.finite()), task) != seal_of(a_result(score=changed.finite()), task)
    assert seal_of(a_result(), task) == seal_of(
        a_result(score=Score(reward=1.0, trace_rewards=(1.0,), parts={})), task
    )


def test_without_a_reward_no_part_has_one() -> None:
    bare = PARTS.without_reward()
    assert {bare.reward, *(part.reward for part in bare.parts.values())} == {None}
    assert bare.parts["tests"].reasons == ("2 of 3 tests fail",)


def test_a_score_becomes_a_part() -> None:
    part = ScorePart.of(Score(reward=1.0, reasons=("good",)), 0.5)
    assert (part.reward, part.weight, part.reasons) == (1.0, 0.5, ("good",))
