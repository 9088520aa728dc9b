"""Which session of which task runs next, and when a task has enough."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from generated_results import BROKEN, a_result, a_task

from polar.errors import ConfigError, PolarError
from polar.node.retries import ReturningSource
from polar.runs.generate.attempts import TaskAttempts, restored
from polar.runs.generate.plan import GeneratePlan, Outcome
from polar.runs.generate.source import AttemptSource
from polar.runs.stored import StoredSession
from polar.store.paths import RunPaths
from polar.types import EarlierAttempt, Failure, Lease, Session, SessionResult, Stage, TaskRequest


def stored(task: TaskRequest, result: SessionResult | None, index: int = 0) -> StoredSession:
    """A session of an earlier run."""
    session = Session(session_id=f"{task.task_id}-{index:03}", task_id=task.task_id or "", index=index)
    return StoredSession(RunPaths(Path("run")), Lease(session=session, task=task), result, 0, 0)


class Desk:
    """A source, and what it reported."""

    def __init__(self, tasks: list[TaskRequest], plan: GeneratePlan, *sessions: StoredSession) -> None:
        self.accounts = restored(tasks, plan, sessions)
        self.outcomes: list[tuple[str, Outcome]] = []
        self.source = AttemptSource(
            self.accounts, lambda result, how: self.outcomes.append((result.session_id, how))
        )

    async def lease(self, room: int = 100) -> list[str]:
        return [lease.session.session_id for lease in await self.source.lease(room)]

    async def end(self, session_id: str, reward: float | None = 1.0, **fields: Any) -> None:
        await self.source.report(a_result(session_id, reward, **fields), None)


async def test_a_task_gets_another_session_only_while_it_wants_one() -> None:
    desk = Desk([a_task("a"), a_task("b")], GeneratePlan(attempts=3, wanted=1))
    assert await desk.lease() == ["a-000", "b-000"]
    await desk.end("a-000")
    await desk.end("b-000", 0.0)
    assert await desk.lease() == ["b-001"]
    await desk.end("b-001", 0.0)
    assert await desk.lease() == ["b-002"]
    await desk.end("b-002", 0.0)
    assert await desk.lease() == []
    assert [(each.attempts, each.accepted, each.done) for each in desk.accounts] == [(1, 1, True), (3, 0, True)]
    assert desk.outcomes[:2] == [("a-000", "accepted"), ("b-000", "rejected")]


async def test_a_lease_waits_for_outcomes_that_decide_if_there_is_more() -> None:
    desk = Desk([a_task("a")], GeneratePlan())
    assert await desk.lease() == ["a-000"]
    waiting = asyncio.create_task(desk.lease())
    await asyncio.sleep(0)
    assert not waiting.done()
    await desk.end("a-000", 0.0)
    assert await waiting == ["a-001"]


async def test_no_session_begins_that_could_be_one_too_many() -> None:
    desk = Desk([a_task("a")], GeneratePlan(attempts=10, wanted=3))
    assert await desk.lease() == ["a-000", "a-001", "a-002"]
    await desk.end("a-001", 0.0)
    await desk.end("a-000")
    assert await desk.lease() == ["a-003"]


async def test_every_task_has_a_session_before_any_has_two() -> None:
    desk = Desk([a_task("a"), a_task("b"), a_task("c")], GeneratePlan(attempts=2, wanted=2))
    assert await desk.lease(4) == ["a-000", "b-000", "c-000", "a-001"]


async def test_failures_through_infrastructure_are_no_attempts_and_end_at_a_bound() -> None:
    desk = Desk([a_task("a")], GeneratePlan(attempts=1, max_failures=2))
    for session_id in ("a-000", "a-001"):
        assert await desk.lease() == [session_id]
        await desk.end(session_id, None, failure=BROKEN, stage=Stage.FAILED)
    assert await desk.lease() == []
    assert [(each.attempts, each.failed) for each in desk.accounts] == [(0, 2)]


async def test_a_session_that_its_node_hands_back_runs_again_under_its_id() -> None:
    desk = Desk([a_task("a")], GeneratePlan(attempts=1))
    assert isinstance(desk.source, ReturningSource)
    assert await desk.lease() == ["a-000"]
    waiting = asyncio.create_task(desk.source.lease(1))
    await asyncio.sleep(0)
    ended = EarlierAttempt(attempt=1, where="engine", why="gone")
    await desk.source.hand_back(a_result("a-000"), ended)
    (lease,) = await waiting
    assert (lease.session.session_id, lease.session.attempt, lease.earlier) == ("a-000", 2, (ended,))
    assert desk.accounts[0].attempts == 0


async def test_a_result_without_a_lease_is_refused() -> None:
    with pytest.raises(PolarError, match="not leased"):
        await Desk([a_task("a")], GeneratePlan()).end("a-000")


async def test_what_ended_before_is_not_run_again() -> None:
    good, bad = a_task("good"), a_task("bad")
    kept = [stored(good, a_result("good-000")), stored(bad, a_result("bad-000", 0.0))]
    desk = Desk([good, bad], GeneratePlan(attempts=2), *kept)
    assert await desk.lease() == ["bad-001"]


@pytest.mark.parametrize("result", [None, a_result("a-000", None, stage=Stage.CANCELLED)])
async def test_what_was_interrupted_runs_again_as_its_next_attempt(result: SessionResult | None) -> None:
    task = a_task("a")
    desk = Desk([task], GeneratePlan(attempts=1), stored(task, result))
    (lease,) = await desk.source.lease(5)
    assert (lease.session.session_id, lease.session.attempt, lease.session.stage) == ("a-000", 2, Stage.QUEUED)
    assert [(each.attempt, each.why) for each in lease.earlier] == [(1, "polar generate was interrupted")]
    assert desk.accounts[0].begun == 1


def test_a_later_run_may_want_more_and_judges_again() -> None:
    task = a_task("a")
    kept = stored(task.model_copy(update={"num_samples": 4}), a_result("a-000", 0.5))
    assert restored([task], GeneratePlan(attempts=1), [kept])[0].done
    assert not restored([task], GeneratePlan(attempts=2), [kept])[0].done
    (account,) = restored([task], GeneratePlan(attempts=9, min_reward=0.5), [kept])
    assert account.done and account.accepted == 1


async def test_a_task_that_was_given_up_is_tried_again_by_the_next_run() -> None:
    task = a_task("a")
    failed = a_result("a-000", None, failure=BROKEN, stage=Stage.FAILED)
    desk = Desk([task], GeneratePlan(max_failures=1), stored(task, failed))
    assert desk.accounts[0].failed == 1 and await desk.lease() == ["a-001"]


def test_a_gap_in_the_numbers_is_not_filled_twice() -> None:
    task = a_task("a")
    (account,) = restored([task], GeneratePlan(attempts=4), [stored(task, a_result("a-002", 0.0), 2)])
    assert account.next().session.session_id == "a-003"


def test_a_changed_task_is_refused() -> None:
    kept = stored(a_task("a", metadata={"repo": "old"}), a_result("a-000"))
    with pytest.raises(ConfigError, match="give the changed task a new task_id"):
        restored([a_task("a")], GeneratePlan(), [kept])


def test_sessions_of_other_tasks_count_for_nothing() -> None:
    (account,) = restored([a_task("a")], GeneratePlan(), [stored(a_task("gone"), a_result("gone-000"))])
    assert account.begun == 0


def test_a_task_id_without_room_for_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="shorten it"):
        TaskAttempts(a_task("x" * 126), GeneratePlan())


AGENT_FAILED = Failure(where="harness", type="HarnessExit", message="exit 1", agent=True)


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (a_result("a-0"), "accepted"),
        (a_result("a-0", 0.99), "rejected"),
        (a_result("a-0", None), "rejected"),
        (a_result("a-0", certificate=None), "rejected"),
        (a_result("a-0", 0.0, failure=AGENT_FAILED, stage=Stage.FAILED), "rejected"),
        (a_result("a-0", failure=BROKEN, stage=Stage.FAILED), "failed"),
        (a_result("a-0", stage=Stage.CANCELLED), "lost"),
        (None, "lost"),
    ],
)
def test_only_confirmed_and_trainable_sessions_are_accepted(
    result: SessionResult | None, outcome: Outcome
) -> None:
    assert GeneratePlan().outcome_of(result) == outcome


@pytest.mark.parametrize(
    ("split_by", "repository"),
    [("repo", "a/a"), ("swe.set", "lite"), ("swe.none", "t"), ("repo.x", "t"), ("number", "3")],
)
def test_the_repository_is_a_value_of_the_metadata_or_the_task_alone(split_by: str, repository: str) -> None:
    task = a_task("t", metadata={"repo": "a/a", "swe": {"set": "lite"}, "number": 3})
    assert GeneratePlan(split_by=split_by).repository_of(task) == repository
