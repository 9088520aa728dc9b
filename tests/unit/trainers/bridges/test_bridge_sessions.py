"""What a trainer takes of a group: the main trace, failure classes, bounds."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest
from stored_groups import GONE, StoredClient, a_group, a_session, a_trace

from polar.credit.advantages import CreditedTrace
from polar.credit.group import Group
from polar.errors import ConfigError, PolarError
from polar.trainers.bridges.config import BridgeConfig, instruction_of
from polar.trainers.bridges.packages import PackageMissing, load
from polar.trainers.bridges.sessions import advantage_of, main_trace, run_groups, sessions_of
from polar.types import Failure, Stage

USER = {"role": "user", "content": "Do it."}
CONFIG = BridgeConfig(task={"harness": "pi", "evaluator": "session_completion"})


def test_the_main_trace_is_last_and_auxiliary_calls_are_left_out() -> None:
    title = a_trace("t-0", [9] * 8, kind="auxiliary")
    helper = a_trace("t-0", [8] * 9, kind="subagent")
    early, late = a_trace("t-0", [5, 5]), a_trace("t-0", [6, 6, 6])
    group = Group("t", (a_session("t-0", 1.0, late, title, helper, early), a_session("t-1", 0.0)))
    session, _ = sessions_of(group, CONFIG)
    assert [item.trace.response_ids[0] for item in session.traces] == [8, 5, 6]
    assert session.main.trace.trainable_tokens == 3
    assert session.advantage == 1.0 and session.reward == 1.0


def test_of_equal_traces_the_later_is_the_main_one() -> None:
    group = Group("t", (a_session("t-0", 1.0, a_trace("t-0", [5]), a_trace("t-0", [6])),))
    assert main_trace(group.credited()).trace.response_ids[0] == 6


def test_sessions_are_in_the_order_of_their_samples() -> None:
    group = Group("t", (a_session("t-2", 1.0), a_session("t-0", 0.0), a_session("t-1", 0.0)))
    assert [session.result.index for session in sessions_of(group, CONFIG)] == [0, 1, 2]


def test_a_lost_session_is_out_and_a_failed_agent_is_in_with_zero() -> None:
    own = Failure.model_validate({"where": "harness", "type": "Exited", "message": "1", "agent": True})
    group = Group(
        "t",
        (
            a_session("t-0", 1.0),
            a_session("t-1", 0.0, failure=own),
            a_session("t-2", 1.0, failure=GONE),
            a_session("t-3", None),
            a_session("t-4", 1.0, stale=True),
        ),
    )
    taken = sessions_of(group, CONFIG)
    assert [session.left_out for session in taken] == ["", "", "infrastructure", "no_reward", "stale"]
    assert [session.advantage for session in taken if session.traces] == [1.0, -1.0]


def test_a_limit_ended_it() -> None:
    late = a_session("t-0", 0.0, stage=Stage.TIMED_OUT)
    spent = a_session("t-1", 0.0, ended_by="max_calls")
    assert [s.was_cut for s in sessions_of(Group("t", (late, spent, a_session("t-2", 1.0))), CONFIG)] == [
        True,
        True,
        False,
    ]


def test_a_long_trace_loses_its_end_and_not_its_place_in_the_baseline() -> None:
    """Session 1's prompt fills the budget: nothing to train on, but its reward is the reason for the advantage of
    the other."""
    endless = a_trace("t-1", prompt_ids=a_trace("t-1").prompt_ids * 2)
    group = Group("t", (a_session("t-0", 1.0), a_session("t-1", 0.0, endless)))
    first, second = sessions_of(group, CONFIG.model_copy(update={"max_tokens": 4}))
    assert first.main.trace.response_ids.tolist() == [5, 6] and first.was_cut and first.advantage == 1.0
    assert second.left_out == "out_of_bounds" and not second.traces


@pytest.mark.parametrize(
    ("now", "trainable"), [("4", 3), ("5", 0), ("step-4", 0)], ids=["young", "old", "no number"]
)
def test_tokens_of_an_old_policy_are_not_trained_on(now: str, trainable: int) -> None:
    group = Group("t", (a_session("t-0", 1.0, a_trace("t-0", version="2")),))
    (session,) = sessions_of(group, CONFIG.model_copy(update={"max_age": 2}), now)
    assert sum(item.trace.trainable_tokens for item in session.traces) == trainable


async def test_groups_come_in_the_order_of_the_tasks() -> None:
    client = StoredClient(a_group("a", 1.0, 0.0), a_group("b", 0.0, 1.0))
    groups = await run_groups(client, [CONFIG.task_for("one", samples=2), CONFIG.task_for("two", samples=2)])
    assert [group.group_id for group in groups] == ["a", "b"]
    assert await run_groups(client, []) == []


async def test_what_has_not_ended_is_cancelled_at_the_server_when_a_trainer_stops() -> None:
    waiting = asyncio.Event()

    class Slow(StoredClient):
        async def groups(self, **_: object):  # type: ignore[override]
            yield self._of["a"]
            waiting.set()
            await asyncio.Event().wait()

    client = Slow(a_group("a", 1.0), a_group("b", 1.0))
    running = asyncio.create_task(run_groups(client, [CONFIG.task_for("one"), CONFIG.task_for("two")]))
    await waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.cancelled == ["b"]


async def test_what_was_being_submitted_is_cancelled_too() -> None:
    submitting = asyncio.Event()

    class Slow(StoredClient):
        async def submit_many(self, tasks: Any) -> Any:
            self.submitted += tasks
            submitting.set()
            await asyncio.Event().wait()

    client = Slow()
    running = asyncio.create_task(run_groups(client, [CONFIG.task_for("one")]))
    await submitting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.cancelled == [client.submitted[0].task_id]


def test_the_advantage_of_a_trace_is_the_mean_of_its_tokens() -> None:
    """The evaluator judged its calls one by one: advantages of -0.5, 0.5 and 0.5."""
    judged = CreditedTrace(a_trace("t-0"), array("d", [-0.5, 0.5, 0.5, 0.0]))
    assert advantage_of(judged) == pytest.approx(1 / 6)


async def test_a_group_that_never_comes_is_an_error() -> None:
    class Forgetful(StoredClient):
        async def groups(self, **_: object):  # type: ignore[override]
            for group in ():
                yield group

    with pytest.raises(PolarError, match="without the groups of a"):
        await run_groups(Forgetful(a_group("a", 1.0)), [CONFIG.task_for("one")])


def test_a_row_becomes_a_task() -> None:
    own = {"polar": {"task_id": "row-7", "files": {"a.txt": "1"}, "harness": "codex"}}
    task = CONFIG.task_for([{"role": "system", "content": "s"}, {"role": "user", "content": "Do it."}], own, 4)
    assert (task.instruction, task.num_samples, task.harness.name) == ("s\n\nDo it.", 4, "codex")
    assert (task.task_id, task.metadata, task.files) == (None, {"row": "row-7"}, {"a.txt": "1"})


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "input_text", "text": "Do it."}, {"type": "text", "text": "Now."}]
    assert instruction_of([{"role": "user", "content": parts}]) == "Do it.\nNow."


def test_what_is_no_prompt_is_refused() -> None:
    for prompt in (
        [{"role": "system", "content": "s"}],
        [],
        None,
        [USER, {"role": "assistant", "content": "a"}, USER],
    ):
        with pytest.raises(ConfigError, match="one message of the user"):
            instruction_of(prompt)
    with pytest.raises(ConfigError, match="parts of the type image_url"):
        instruction_of([{"role": "user", "content": [{"type": "image_url"}]}])
    with pytest.raises(ConfigError, match="remove group_id"):
        CONFIG.task_for("x", {"polar": {"group_id": "g"}})


def test_a_missing_package_names_the_command() -> None:
    with pytest.raises(PackageMissing, match=r"pip install 'no-such==1\.0'"):
        load("no_such_trainer", "'no-such==1.0'")
