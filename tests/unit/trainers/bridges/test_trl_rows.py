"""The rows that TRL's `rollout_func` gets. TRL itself is in tests/integration/trainers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from stored_groups import StoredClient, a_group

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.trl import RolloutFunction, session_reward

CONFIG = BridgeConfig(task={"harness": "pi"})


def at_step(step: int) -> Any:
    return SimpleNamespace(state=SimpleNamespace(global_step=step))


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
