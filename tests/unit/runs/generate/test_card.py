"""The data card and its page."""

from __future__ import annotations

import pytest
from generated_results import a_result, a_task

from polar.runs.generate.attempts import TaskAttempts
from polar.runs.generate.card import DataCard, SessionFacts, SplitTally, Spread, Tally, by_repository
from polar.runs.generate.page import page_of
from polar.runs.generate.plan import GeneratePlan

PLAN = GeneratePlan(attempts=2)


def an_account(task_id: str, repository: str, *rewards: float) -> TaskAttempts:
    account = TaskAttempts(a_task(task_id, metadata={"repo": repository}), PLAN)
    for reward in rewards:
        lease = account.next()
        account.end(a_result(lease.session.session_id, reward), lease)
    return account


ACCOUNTS = [
    an_account("one", "o/a", 0.0, 1.0),
    an_account("two", "o/a", 1.0),
    an_account("three", "o|b", 0.0, 0.0),
]


def a_card(complete: bool = True) -> DataCard:
    facts = SessionFacts()
    for session_id in ("one-001", "two-000"):
        facts.add(a_task(session_id[:-4]), a_result(session_id), tokens=30)
    return DataCard(
        command="polar generate tasks.toml --out set",
        run_id="run-1",
        plan=PLAN.values(),
        complete=complete,
        all=Tally.of(ACCOUNTS),
        tasks_solved=2,
        repositories=by_repository(ACCOUNTS, {"o/a": "train"}),
        splits={
            "train": SplitTally(repositories=1, sessions=2, share=1.0, rows={"sft": 1, "tokens": 1}),
            "test": SplitTally(repositories=0, sessions=0, share=0.0, rows={"sft": 0, "tokens": 0}),
        },
        repeated={"same_text": 1},
        turns=Spread.of(facts.turns),
        sampled_tokens=Spread.of(facts.sampled_tokens),
        tokens=Spread.of(facts.tokens),
        harnesses=facts.counted("harness"),
        models=facts.counted("model"),
        engines=facts.counted("engine"),
        polars=facts.counted("polar"),
        evaluators=facts.counted("evaluator"),
    )


def test_attempts_accepted_and_rate_by_repository() -> None:
    card = a_card()
    found = {
        each.repository: (each.tally.attempts, each.tally.accepted, each.tally.rate) for each in card.repositories
    }
    assert found == {"o/a": (3, 2, 0.6667), "o|b": (2, 0, 0.0)}
    assert (card.all.attempts, card.all.accepted, card.all.rate) == (5, 2, 0.4)


def test_the_page_has_the_tables_and_names_the_files() -> None:
    page = page_of(a_card())
    for line in (
        "- config_name: sft",
        '    path: "tokens/train/data/*"',
        "| o/a | 2 | 3 | 2 | 66.7% | train |",
        "| o\\|b | 1 | 2 | 0 | 0.0% | - |",
        "| all | 3 | 5 | 2 | 40.0% |  |",
        "| train | 1 | 2 | 100.0% | 1 | 1 |",
        "| turns | 2 | 2 | 2 |",
        "| harness | pi 1.2 (2) |",
        "| evaluator | session_completion (2) |",
        "- 1 traces repeat others and are left out: same_text 1.",
    ):
        assert line in page.splitlines(), line
    assert "split: test" not in page and "interrupted" not in page


def test_an_interrupted_run_says_so() -> None:
    assert (
        "- The run was interrupted: the same command continues it." in page_of(a_card(complete=False)).splitlines()
    )


@pytest.mark.parametrize(
    ("values", "mean", "p50", "p90"),
    [([4], 4, 4, 4), ([1, 2], 1.5, 1.5, 2), (list(range(1, 11)), 5.5, 5.5, 9), ([5, 1, 3], 3, 3, 5)],
)
def test_spread(values: list[int], mean: float, p50: float, p90: float) -> None:
    assert Spread.of(values) == Spread(mean=mean, p50=p50, p90=p90)


def test_nothing_has_no_spread_and_no_rate() -> None:
    assert Spread.of([]) is None and Tally.of([]).rate is None
