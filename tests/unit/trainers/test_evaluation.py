"""Evaluation from results alone: every session counts, and policies are compared task by task."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polar.trainers.evaluation import (
    EvalReport,
    EvalSettings,
    TaskTally,
    Variant,
    VariantResults,
    cancelled_by_client,
    evaluate,
    report_of,
)
from polar.types import Failure, Score, SessionResult, Stage

ENGINE_LOST = Failure(where="engine", type="EngineError", message="no connection")
AGENT_LOOPED = Failure(where="harness", type="TimedOut", message="600 s", agent=True)


def result(task: str, index: int, reward: float | None, failure: Failure | None = None) -> SessionResult:
    return SessionResult(
        session_id=f"{task}-{index}",
        task_id=task,
        index=index,
        attempt=1,
        stage=Stage.FAILED if failure else Stage.COMPLETED,
        score=None if reward is None else Score(reward=reward),
        failure=failure,
    )


def task(name: str, *rewards: float | None) -> list[SessionResult]:
    return [result(name, index, reward) for index, reward in enumerate(rewards)]


def test_an_infrastructure_failure_counts_as_not_solved_and_is_shown_apart() -> None:
    results = [*task("a", 1.0, 1.0, None), result("a", 3, 1.0, ENGINE_LOST), result("a", 4, 0.0, AGENT_LOOPED)]
    report = evaluate(results).variants[0]
    assert (report.sessions, report.solved, report.infrastructure, report.unjudged) == (5, 2, 1, 1)
    assert report.of_all.value == 2 / 5
    assert report.of_judged is not None and report.of_judged.value == 2 / 3
    assert report.mean_reward == pytest.approx(2 / 3)
    assert report.tasks == (TaskTally(task="a", sessions=5, solved=2, infrastructure=1, unjudged=1),)


@pytest.mark.parametrize(
    ("fields", "by_client"),
    [
        ({"stage": Stage.CANCELLED}, True),
        ({"stage": Stage.CANCELLED, "cancel_reason": "its group has 2 trainable sessions; enough is 2"}, False),
        ({"stage": Stage.CANCELLED, "failure": Failure(where="policy", type="Stale", message="3 updates")}, False),
        ({"stage": Stage.FAILED, "failure": ENGINE_LOST}, False),
        ({"stage": Stage.COMPLETED}, False),
    ],
)
def test_who_cancelled_a_session_is_known(fields: dict[str, object], by_client: bool) -> None:
    assert cancelled_by_client(result("a", 0, None).model_copy(update=fields)) is by_client


@pytest.mark.parametrize("limit", [float("nan"), float("inf")])
def test_a_threshold_is_a_number(limit: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        EvalSettings(solved_at=limit)


def test_solved_is_a_reward_of_at_least_the_threshold() -> None:
    results = task("a", 0.4, 0.5, 0.6, 1.0)
    assert evaluate(results).variants[0].solved == 1
    assert evaluate(results, EvalSettings(solved_at=0.5)).variants[0].solved == 3


def test_pass_rates_are_means_over_tasks() -> None:
    results = [*task("easy", 1, 1, 1, 1), *task("even", 1, 0, 1, 0), *task("hard", 0, 0, 0, 0)]
    report = evaluate(results, EvalSettings(ks=(1, 2, 4))).variants[0]
    found = [(rates.k, rates.tasks, rates.pass_at.value, rates.pass_hat.value) for rates in report.rates]
    assert found == [
        (1, 3, pytest.approx(1 / 2), pytest.approx(1 / 2)),
        (2, 3, pytest.approx((1 + 5 / 6) / 3), pytest.approx((1 + 1 / 6) / 3)),
        (4, 3, pytest.approx(2 / 3), pytest.approx(1 / 3)),
    ]


def test_a_task_with_too_few_sessions_is_not_in_the_rate_and_the_report_has_the_number() -> None:
    report = evaluate([*task("a", 1, 1), *task("b", 0)], EvalSettings(ks=(1, 2, 4))).variants[0]
    assert [(rates.k, rates.tasks) for rates in report.rates] == [(1, 2), (2, 1)]
    assert report.at(4) is None


def two_policies(base: Sequence[SessionResult], trained: Sequence[SessionResult]) -> EvalReport:
    return report_of(
        [
            VariantResults(Variant(policy="base", harness="pi", runtime="local"), base),
            VariantResults(Variant(policy="trained", harness="pi", runtime="local"), trained),
        ]
    )


def test_policies_are_compared_by_the_tasks_both_have() -> None:
    report = two_policies(
        [*task("a", 0, 0), *task("b", 1, 0), *task("c", 1, 1), *task("only-base", 1)],
        [*task("a", 1, 0), *task("b", 1, 1), *task("c", 1, 1), *task("only-trained", 0)],
    )
    (difference,) = report.differences
    assert (difference.base.policy, difference.variant.policy) == ("base", "trained")
    assert (difference.tasks, difference.better, difference.worse) == (3, 2, 0)
    assert difference.pass_at.value == pytest.approx(1 / 3)
    assert difference.pass_at.low >= 0


def test_harnesses_are_not_compared_with_each_other() -> None:
    results = task("a", 1, 0)
    variants = [VariantResults(Variant(harness=name), results) for name in ("pi", "codex")]
    assert report_of(variants).differences == ()


def test_tasks_that_have_other_ids_in_a_run_are_paired_by_their_name_in_the_set() -> None:
    renamed = VariantResults(Variant(policy="b"), task("t.pi", 1), {"t.pi": "t"})
    report = report_of([VariantResults(Variant(policy="a"), task("t", 0)), renamed])
    assert report.differences[0].tasks == 1


def test_a_report_is_the_same_after_a_file() -> None:
    report = two_policies(task("a", 0, 1), task("a", 1, 1))
    assert EvalReport.model_validate_json(report.model_dump_json()) == report


def test_without_sessions_there_is_nothing_to_report() -> None:
    assert evaluate([]).variants == ()
