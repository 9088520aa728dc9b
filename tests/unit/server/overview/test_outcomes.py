"""What the newest outcomes amount to, and what of a result becomes a column."""

from __future__ import annotations

from typing import Any

import pytest

from polar.server.overview.outcome_columns import outcome_columns, storable
from polar.server.overview.outcomes import (
    WINDOW,
    CountedOutcome,
    by_harness,
    count_by,
    ended_per_minute,
    failures,
    mean,
)
from polar.types import Failure, Health, Score, SessionResult, Stage
from polar.types.base import MAX_CURSOR
from polar.types.trace import TrajectoryStatistics

PLAIN: dict[str, Any] = {
    "session_id": "s",
    "harness": "one",
    "reward": None,
    "untrainable_reason": "",
    "failed_by": "",
    "failure_where": "",
    "failure_type": "",
    "calls": 0,
    "traces": 0,
    "sampled_tokens": 0,
    "append_only_pairs": 0,
    "merged_pairs": 0,
    "policy_updates": 0,
    "stale": False,
    "run_s": None,
    "at": None,
}


def outcome(**fields: Any) -> CountedOutcome:
    return CountedOutcome(**{**PLAIN, **fields})


def result(**fields: Any) -> SessionResult:
    values = {"session_id": "a-0", "task_id": "a", "index": 0, "attempt": 1, "stage": Stage.COMPLETED}
    return SessionResult.model_validate({**values, **fields})


def test_a_harness_is_judged_by_its_own_sessions() -> None:
    rows = [
        outcome(reward=1.0, calls=5, traces=1, append_only_pairs=4, merged_pairs=4, sampled_tokens=10, run_s=2.0),
        outcome(reward=0.0, calls=3, traces=2, append_only_pairs=2, merged_pairs=1, sampled_tokens=5, run_s=4.0),
        outcome(untrainable_reason="infrastructure", failed_by="infrastructure"),
        outcome(harness="other", reward=0.5),
    ]
    one, other = by_harness(rows)
    assert (one.harness, one.sessions, one.trainable, one.mean_reward) == ("one", 3, 2, 0.5)
    assert (one.calls_per_session, one.rows_per_session, one.sampled_tokens) == (8 / 3, 1.0, 15)
    assert one.merge_rate == pytest.approx(5 / 6)
    assert one.run_s == 3.0
    assert (other.harness, other.sessions, other.merge_rate, other.run_s) == ("other", 1, None, None)


def test_failures_of_one_kind_are_counted_together_with_the_newest_as_an_example() -> None:
    exit_code = {"failed_by": "agent", "failure_where": "harness", "failure_type": "ExitCode"}
    away = {"failed_by": "infrastructure", "failure_where": "engine", "failure_type": "EngineError"}
    rows = [
        outcome(session_id="newest", **exit_code),
        outcome(session_id="lost", **away),
        outcome(session_id="well"),
        outcome(session_id="oldest", **exit_code),
    ]
    first, second = failures(rows)
    assert (first.where, first.type, first.agent, first.count) == ("harness", "ExitCode", True, 2)
    assert first.session_id == "newest"
    assert (second.agent, second.count, second.session_id) == (False, 1, "lost")


def test_results_per_minute_are_those_of_the_last_five_minutes() -> None:
    now = 10_000.0
    assert ended_per_minute([], now) is None
    assert ended_per_minute([outcome()], now) is None, "recorded before the server noted times"
    recent = [outcome(at=now - 10 * each) for each in range(30)]
    assert ended_per_minute([*recent, outcome(at=now - 4000)], now) == pytest.approx(6.0)


def test_the_first_results_of_a_service_are_no_flood() -> None:
    assert ended_per_minute([outcome(at=99.0)], now=100.0) == 1.0


def test_a_full_window_covers_less_time() -> None:
    """More may have ended in five minutes than the window holds."""
    rows = [outcome(at=100.0 - each / 100) for each in range(WINDOW)]
    assert ended_per_minute(rows, now=100.0) == pytest.approx(6000, rel=0.01)


def test_counts_are_in_the_order_of_their_keys() -> None:
    rows = [outcome(policy_updates=updates) for updates in (3, 0, 1, 0)]
    assert list(count_by(rows, lambda row: row.policy_updates).items()) == [(0, 2), (1, 1), (3, 1)]


def test_a_mean_is_over_what_is_known() -> None:
    assert mean([None, 1.0, 0.0, None]) == 0.5
    assert mean([None]) is None


def test_the_columns_of_a_result() -> None:
    statistics = TrajectoryStatistics(
        calls=4, traces=2, sampled_tokens=30, append_only_pairs=3, merged_pairs=2, trainable_tokens=30
    )
    columns = outcome_columns(
        result(
            score=Score(reward=0.5),
            statistics=statistics,
            policy_updates=2,
            health=Health(verdict="suspect"),
            stage_s={"RUNNING": 12.5, "QUEUED": 1.0},
        )
    )
    assert columns == {
        "session_id": "a-0",
        "stage": "COMPLETED",
        "reward": 0.5,
        "untrainable_reason": "not_certified",
        "failed_by": "",
        "failure_where": "",
        "failure_type": "",
        "calls": 4,
        "traces": 2,
        "sampled_tokens": 30,
        "append_only_pairs": 3,
        "merged_pairs": 2,
        "policy_updates": 2,
        "stale": False,
        "health": "suspect",
        "run_s": 12.5,
    }


def test_a_failure_of_infrastructure_leaves_no_reward() -> None:
    failure = Failure(where="engine", type="EngineError", message="away")
    columns = outcome_columns(result(score=Score(reward=1.0), failure=failure))
    assert (columns["reward"], columns["failed_by"], columns["failure_type"]) == (
        None,
        "infrastructure",
        "EngineError",
    )


def test_what_no_database_can_hold_does_not_reach_it() -> None:
    failure = Failure(where="a\0b", type="\ud800" * 300, message="", agent=True)
    columns = outcome_columns(result(failure=failure, statistics=TrajectoryStatistics(calls=2**80, traces=-1)))
    assert (columns["failure_where"], columns["failed_by"]) == ("a\ufffdb", "agent")
    assert columns["failure_type"] == "?" * 200
    assert (columns["calls"], columns["traces"]) == (MAX_CURSOR, 0)
    assert storable("plain, but ünicode") == "plain, but ünicode"
