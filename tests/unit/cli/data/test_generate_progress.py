"""The progress of `polar generate`."""

from __future__ import annotations

import pytest

from polar.cli.data.generate_progress import GenerateProgress, expected_attempts
from polar.runs.generate.attempts import TaskAttempts
from polar.runs.generate.plan import GeneratePlan
from polar.types import Failure, Score, SessionResult, Stage, TaskRequest

PLAN = GeneratePlan(attempts=4, wanted=2)


def an_account(name: str) -> TaskAttempts:
    return TaskAttempts(TaskRequest(task_id=name, instruction="Do it."), PLAN)


def rejected(account: TaskAttempts) -> SessionResult:
    lease = account.next()
    result = SessionResult(
        session_id=lease.session.session_id,
        task_id=account.task_id,
        index=lease.session.index,
        attempt=1,
        stage=Stage.FAILED,
        score=Score(reward=0.0),
        failure=Failure(where="harness", type="HarnessExit", message="exit code 3", agent=True),
    )
    assert account.end(result, lease) == "rejected"
    return result


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 8), (0.25, 8), (0.5, 8), (0.8, 5), (1.0, 4)])
def test_open_tasks_take_what_the_rate_asks_for_and_never_more_than_they_may(rate: float, expected: float) -> None:
    assert expected_attempts([an_account("a"), an_account("b")], PLAN, rate) == expected


def test_a_task_without_attempts_left_takes_none() -> None:
    account = an_account("a")
    for _ in range(4):
        rejected(account)
    assert account.done and expected_attempts([account], PLAN, 0.5) == 0


def test_each_outcome_has_a_line_and_the_time_left_is_known_after_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    accounts = [an_account("a")]
    progress = GenerateProgress(accounts, PLAN)
    with progress:
        assert progress.seconds_left() is None
        progress.judged(rejected(accounts[0]), "rejected")
        assert progress.seconds_left() is not None
    shown = capsys.readouterr().err
    assert "a-000" in shown and "rejected" in shown and "harness: exit code 3" in shown
