"""Sessions that an unknown signal has ended are counted by task, where a run is summed up."""

from __future__ import annotations

import pytest

from polar.cli.runs.summary import print_summary, summary_json
from polar.types import Failure, SessionResult, Stage


def ended_by(task_id: str, index: int, kind: str) -> SessionResult:
    failure = Failure(where="harness", type=kind, message="ended")
    return SessionResult(
        session_id=f"{task_id}-{index}",
        task_id=task_id,
        index=index,
        attempt=1,
        stage=Stage.FAILED,
        failure=failure,
    )


def test_they_are_counted_by_task(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        ended_by("a", 0, "UnknownSignal"),
        ended_by("a", 1, "UnknownSignal"),
        ended_by("b", 0, "HarnessExit"),
    ]
    assert summary_json(results)["unknown_signals"] == {"a": 2}
    print_summary(results)
    assert "sender is not known, by task: a 2" in capsys.readouterr().out


def test_without_any_they_are_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary([ended_by("b", 0, "HarnessExit")])
    assert "signal" not in capsys.readouterr().out
