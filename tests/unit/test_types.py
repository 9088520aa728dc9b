"""The nouns: what they refuse, and how a session moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from polar.types import (
    FINAL_STAGES,
    TRANSITIONS,
    IllegalTransition,
    Score,
    Session,
    Slot,
    Span,
    Spec,
    Stage,
    TaskRequest,
    Trace,
    TraceError,
    is_id,
    logprobs,
    loss_mask,
    token_ids,
)


class TestStages:
    WALK = (Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN, Stage.COMPLETED)

    def test_the_whole_walk(self) -> None:
        session = Session(session_id="s", task_id="t", index=0)
        for stage in self.WALK:
            session = session.advance(stage)
        assert session.stage.final

    @given(st.sampled_from(list(Stage)), st.sampled_from(list(Stage)))
    def test_only_the_table_says_what_may_follow(self, now: Stage, then: Stage) -> None:
        session = Session(session_id="s", task_id="t", index=0, stage=now)
        if then in TRANSITIONS[now]:
            assert session.advance(then).stage == then
        else:
            with pytest.raises(IllegalTransition, match=f"{now} cannot become {then}"):
                session.advance(then)

    def test_every_stage_has_its_row_and_final_ones_end(self) -> None:
        assert set(TRANSITIONS) == set(Stage)
        assert all(not TRANSITIONS[stage] for stage in FINAL_STAGES)

    def test_a_session_is_a_value(self) -> None:
        session = Session(session_id="s", task_id="t", index=0)
        session.advance(Stage.INIT)
        assert session.stage == Stage.QUEUED


class TestIds:
    @pytest.mark.parametrize("text", ["a", "task-1", "A.b_c-9", "0" * 128])
    def test_good(self, text: str) -> None:
        assert is_id(text)

    @pytest.mark.parametrize(
        "text", ["", ".", "..", "../x", "a/b", "a\\b", "-a", "a b", "ä", "a\n", "a\0", "0" * 129]
    )
    def test_bad(self, text: str) -> None:
        assert not is_id(text)
        with pytest.raises(ValidationError):
            TaskRequest(task_id=text, instruction="x")


class TestTaskRequest:
    def test_an_instruction_is_enough(self) -> None:
        task = TaskRequest(instruction="x")
        assert (task.num_samples, task.harness.name, task.runtime.name) == (1, "pi", "local")
        sampling = task.sampling
        plain = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        assert plain == (1.0, 1.0, 0, 0.0), "training samples from the plain distribution"

    def test_a_plug_in_by_its_bare_name(self) -> None:
        assert TaskRequest.model_validate({"instruction": "x", "harness": "shell"}).harness == Spec(name="shell")

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"instruction": ""},
            {"instruction": "x", "num_samples": 0},
            {"instruction": "x", "num_samples": -3},
            {"instruction": "x", "unknown": 1},
            {"instruction": "x", "budgets": {"run_s": 0}},
            {"instruction": "x", "budgets": {"max_calls": -1}},
            {"instruction": "x", "sampling": {"top_p": 0}},
            {"instruction": "x", "sampling": {"temperature": -1}},
            {"instruction": "x", "harness": 7},
            {"instruction": "x", "group_id": "../up"},
        ],
    )
    def test_nonsense_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            TaskRequest.model_validate(fields)

    def test_it_cannot_be_changed(self) -> None:
        task = TaskRequest(instruction="x")
        with pytest.raises(ValidationError):
            task.instruction = "y"  # type: ignore[misc]


def test_a_slots_key_is_not_shown() -> None:
    slot = Slot(base_url="http://x", key="sk-secret", model="m", context_tokens=1)
    assert "sk-secret" not in repr(slot) and "sk-secret" not in str(slot)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_is_a_number_or_nothing(reward: float) -> None:
    with pytest.raises(ValidationError):
        Score(reward=reward)
    with pytest.raises(ValidationError):
        Score(reward=1.0, trace_rewards=(reward,))
    with pytest.raises(ValidationError):
        Score(reward=1.0, call_rewards={"c1": reward})
    assert Score(reward=None).reward is None


def trace(**changes: Any) -> Trace:
    values: dict[str, Any] = {
        "session_id": "s",
        "prompt_ids": token_ids([1]),
        "response_ids": token_ids([2, 3]),
        "loss_mask": loss_mask([1, 0]),
        "logprobs": logprobs([-0.5, 0.0]),
        "spans": (Span("c1", 0, 1, "v1"), Span("c2", 1, 1, "v1"), Span("c3", 1, 1, "v2")),
    }
    return Trace(**{**values, **changes})


class TestTrace:
    def test_it_counts_what_can_be_trained_on(self) -> None:
        assert trace().trainable_tokens == 1
        assert trace().policy_versions == ("v1", "v2")

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"prompt_ids": token_ids()}, "needs a prompt"),
            ({"loss_mask": loss_mask([1])}, "2 response ids, but 1 mask"),
            ({"logprobs": logprobs([-1.0])}, "1 logprobs"),
            ({"logprobs": logprobs([math.nan, 0.0])}, "logprob nan at position 0"),
            ({"logprobs": logprobs([-math.inf, 0.0])}, "logprob -inf at position 0"),
            ({"logprobs": logprobs([-1.0, 0.5])}, "logprob 0.5 at position 1"),
            ({"loss_mask": loss_mask([1, 2])}, "mask 2 at position 1"),
        ],
    )
    def test_it_refuses_to_lie(self, changes: dict[str, Any], reason: str) -> None:
        with pytest.raises(TraceError, match=reason):
            trace(**changes)
