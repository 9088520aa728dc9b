"""The rows that TRL's `rollout_func` gets. TRL itself is in tests/integration/trainers."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from silent_sessions import a_silent_session
from stored_groups import StoredClient, a_group, a_session

from polar.credit.group import Group
from polar.errors import ConfigError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.trl import RolloutFunction, scored, session_reward

CONFIG = BridgeConfig(task={"harness": "pi"})


def at_step(step: int, temperature: float = 1.0) -> Any:
    return SimpleNamespace(state=SimpleNamespace(global_step=step), args=SimpleNamespace(temperature=temperature))


def test_one_row_for_each_prompt_in_the_order_of_the_prompts() -> None:
    client = StoredClient(a_group("a", 1.0, 0.0), a_group("b", 0.5, None))
    rollout = RolloutFunction(CONFIG, tasks={"two": {"files": {"x": "y"}}}, connect=lambda: client)
    rows = rollout(["one", "one", "two", "two"], at_step(3))
    assert rows["polar_reward"] == [1.0, 0.0, 0.5, None]
    assert rows["prompt_ids"] == [[1, 2]] * 3 + [[0]]
    assert rows["completion_ids"] == [[5, 6, 7, 3]] * 3 + [[0]]
    assert rows["env_mask"] == [[1, 1, 1, 0]] * 3 + [[0]]
    assert rows["logprobs"] == [[-0.5, -0.5, -0.5, 0.0]] * 3 + [[0.0]]
    assert [(task.instruction, task.num_samples, task.files) for task in client.submitted] == [
        ("one", 2, {}),
        ("two", 2, {"x": "y"}),
    ]
    assert client.versions == ["3"]


def test_a_trace_beyond_the_budget_keeps_its_reward_in_trls_baseline() -> None:
    rollout = RolloutFunction(
        CONFIG.model_copy(update={"max_tokens": 2}), connect=lambda: StoredClient(a_group("a", 1.0, None))
    )
    rows = rollout(["one", "one"], at_step(0))
    assert rows["env_mask"] == [[0], [0]] and rows["polar_reward"] == [1.0, None]


def test_a_prompt_of_messages_finds_its_task_by_the_instruction() -> None:
    client = StoredClient(a_group("a", 1.0, 0.0))
    prompt = [{"role": "user", "content": "two"}]
    rollout = RolloutFunction(CONFIG, tasks={"two": {"files": {"x": "y"}}}, connect=lambda: client)
    rollout([prompt, list(prompt)], at_step(0))
    assert [(task.instruction, task.num_samples, task.files) for task in client.submitted] == [
        ("two", 2, {"x": "y"})
    ]


def test_new_weights_are_given_once_for_each_step() -> None:
    client = StoredClient(*(a_group(name, 1.0) for name in "abc"))
    pushed: list[int] = []
    rollout = RolloutFunction(
        CONFIG, before_rollout=lambda trainer: pushed.append(trainer.state.global_step), connect=lambda: client
    )
    for step in (0, 0, 1):
        rollout(["one"], at_step(step))
    assert pushed == [0, 1] and client.versions == ["0", "0", "1"]


def test_the_reward_function_reads_the_column_or_says_what_is_missing() -> None:
    assert session_reward(prompts=["a", "b"], polar_reward=[1.0, None], completions=[]) == [1.0, None]
    with pytest.raises(ValueError, match="rollout_func=RolloutFunction"):
        session_reward(prompts=["a"])


def test_a_session_without_a_trainable_token_keeps_its_reward_in_trls_baseline() -> None:
    group = Group("a", (a_session("a-0", 1.0), a_silent_session("a-1", 0.0), a_session("a-2", 1.0)))
    rows = RolloutFunction(CONFIG, connect=lambda: StoredClient(group))(["one"] * 3, at_step(0))
    assert rows["polar_reward"] == [1.0, 0.0, 1.0] and rows["env_mask"][1] == [0]


def length(completions: list[str], weight: float = 1.0, **_: Any) -> list[float]:
    return [weight * len(completion) for completion in completions]


class Judge:
    async def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [float(len(completion)) for completion in completions]


def test_another_reward_function_says_none_where_a_session_has_no_reward() -> None:
    columns: dict[str, Any] = {"prompts": ["", ""], "completions": ["abc", "ab"], "polar_reward": [0.0, None]}
    assert scored(length)(**columns) == [3.0, None]
    assert scored(partial(length, weight=2.0))(**columns) == [6.0, None]
    judge = scored(Judge())
    assert asyncio.run(judge(**columns)) == [3.0, None]
    assert inspect.iscoroutinefunction(judge), "TRL awaits such functions together"
    assert (scored(length).__name__, judge.__name__) == ("length", "Judge"), "names of TRL's columns"


def test_a_temperature_that_is_not_that_of_the_sessions_is_refused() -> None:
    client = StoredClient(a_group("a", 1.0))
    with pytest.raises(ConfigError, match=r"temperature is 0\.7, but Polar samples at 1: set temperature=1 in"):
        RolloutFunction(CONFIG, connect=lambda: client)(["one"], at_step(0, temperature=0.7))
    assert client.submitted == []
    cooler = BridgeConfig(task={"harness": "pi", "sampling": {"temperature": 0.7}})
    RolloutFunction(cooler, connect=lambda: client)(["one"], at_step(0, temperature=0.7))
