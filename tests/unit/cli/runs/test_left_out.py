"""A session that failed through infrastructure is in no mean, and the tables say how many were left out."""

from __future__ import annotations

from typing import Any

import pytest

from polar.audit.certificate import certify
from polar.cli.runs.summary import print_summary, summary_json
from polar.types import Failure, Score, SessionResult, Stage, Trajectory, TrajectoryStatistics

EXACT = certify((), Trajectory(session_id="t-0", builder="prefix_merging"))
GONE = Failure(where="engine", type="EngineError", message="gone")


def a_result(index: int, reward: float | None, **fields: Any) -> SessionResult:
    values: dict[str, Any] = {
        "session_id": f"t-{index}",
        "task_id": "t",
        "index": index,
        "attempt": 1,
        "stage": Stage.COMPLETED,
        "score": Score(reward=reward),
        "statistics": TrajectoryStatistics(sampled_tokens=5, trainable_tokens=5),
        "certificate": EXACT,
    }
    return SessionResult(**(values | fields))


def a_group() -> list[SessionResult]:
    """Two that count, one whose engine failed although its evaluator was content, one that is stale."""
    return [
        a_result(0, 1.0),
        a_result(1, 0.0),
        a_result(2, 1.0, stage=Stage.FAILED, failure=GONE),
        a_result(3, 0.5, stale=True),
    ]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(a_group())
    _, row, account, no_mean, untrainable, *_ = capsys.readouterr().out.splitlines()
    assert row.split()[:6] == ["t", "1.0", "0.0", "-", "0.5", "0.50"]
    assert account.endswith("+ 0 dropped")
    assert no_mean == "1 of 4 sessions have no reward and are in no mean: infrastructure 1"
    assert untrainable == "2 of 4 sessions may not be trained on: infrastructure 1, stale 1"


def test_a_table_without_losses_says_nothing_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(a_group()[:2])
    out = capsys.readouterr().out
    assert "no mean" not in out and "trained on" not in out
    print_summary(a_group()[:3])
    assert "may not be trained on" not in capsys.readouterr().out, "the same sessions are not counted twice"


def test_the_json() -> None:
    summary = summary_json(a_group())
    assert (summary["mean_reward"], summary["left_out_of_mean"]) == (0.5, {"infrastructure": 1})
    assert (summary["trainable_sessions"], summary["not_trainable"]) == (2, {"infrastructure": 1, "stale": 1})
    assert summary_json(a_group()[2:3])["mean_reward"] is None


def test_tokens_that_were_cut_off_are_in_the_account(capsys: pytest.CaptureFixture[str]) -> None:
    statistics = TrajectoryStatistics(sampled_tokens=5, trainable_tokens=5, cut_tokens=3)
    print_summary([a_result(0, 1.0, statistics=statistics)])
    assert "+ 0 dropped; 3 more were given after the end of a reply and cut off" in capsys.readouterr().out
    assert summary_json([a_result(0, 1.0, statistics=statistics)])["cut_tokens"] == 3
