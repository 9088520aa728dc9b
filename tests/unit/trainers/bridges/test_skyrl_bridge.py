"""SkyRL's side: its input batch in, step-wise rows out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from stored_groups import StoredClient, a_group, a_session, a_trace
from test_verl_bridge import without_trainable_tokens

from polar.credit.group import Group
from polar.errors import ConfigError, PolarError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.skyrl import Generator

CONFIG = BridgeConfig(task={"harness": "pi"})


@dataclass
class TrajectoryID:
    """As SkyRL 0.3.0 and 0.4.0 have it."""

    instance_id: str
    repetition_id: int


@dataclass
class BatchMetadata:
    global_step: int
    training_phase: str


PLAINLY = {"max_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "stop": None}
"""As SkyRL gives the parameters of `generator.sampling_params`, without those that say nothing here."""


def batch(*instances: str, samples: int = 2) -> dict[str, Any]:
    ids = [TrajectoryID(name, number) for name in instances for number in range(samples)]
    return {
        "prompts": [[{"role": "user", "content": f"Do {each.instance_id}."}] for each in ids],
        "env_classes": ["polar"] * len(ids),
        "env_extras": [{"polar": {"files": {"n.txt": each.instance_id}}} for each in ids],
        "sampling_params": None,
        "trajectory_ids": ids,
        "batch_metadata": None,
    }


def an_evaluation(*instances: str, samples: int = 2) -> dict[str, Any]:
    params = {**PLAINLY, "temperature": 0.0, "stop": ["END"]}
    phase = BatchMetadata(global_step=5, training_phase="eval")
    return {**batch(*instances, samples=samples), "sampling_params": params, "batch_metadata": phase}


def rewards_of(output: dict[str, Any]) -> list[float]:
    """What SkyRL takes the mean of."""
    return [sum(row) for row, last in zip(output["rewards"], output["is_last_step"], strict=True) if last]


def check_step_wise(output: dict[str, Any]) -> None:
    """The rules of SkyRL's `validate_generator_output(step_wise=True)`."""
    size = len(output["response_ids"])
    rows = {name: value for name, value in output.items() if isinstance(value, list)}
    assert {name for name, value in rows.items() if len(value) != size} == set()
    for name in ("loss_masks", "rewards", "rollout_logprobs"):
        assert [len(row) for row in output[name]] == [len(row) for row in output["response_ids"]]
    keys = [(each.instance_id, each.repetition_id) for each in output["trajectory_ids"]]
    ends = [n + 1 == size or keys[n] != keys[n + 1] for n in range(size)]
    assert output["is_last_step"] == ends, "the last row of each session, and no other"
    assert len(set(keys)) == sum(ends), "the rows of a session stand together"


async def test_the_rows_of_a_session_stand_together_and_the_reward_is_on_the_main_trace() -> None:
    split = a_session("a-0", 0.5, a_trace("a-0", [5, 6, 7]), a_trace("a-0", [8], kind="subagent"))
    client = StoredClient(Group("a", (split, a_session("a-1", 0.0))), a_group("b", 1.0, 0.0))
    output = await Generator(CONFIG, lambda: client).generate(batch("a", "b"))
    check_step_wise(output)
    assert output["is_last_step"] == [False, True, True, True, True]
    assert output["response_ids"][:2] == [[8, 3], [5, 6, 7, 3]]
    assert output["rewards"][:2] == [[0.0, 0.0], [0.0, 0.0, 0.0, 0.5]]
    assert output["loss_masks"][1] == [1, 1, 1, 0] and output["prompt_token_ids"][1] == [1, 2]
    counts = {"polar/sessions": 4, "polar/left_out": 0, "polar/traces": 5}
    assert output["rollout_metrics"] == {**counts, "polar/avg_reward": 0.375}
    assert [(task.instruction, task.num_samples, task.files) for task in client.submitted] == [
        ("Do a.", 2, {"n.txt": "a"}),
        ("Do b.", 2, {"n.txt": "b"}),
    ]


async def test_a_lost_session_has_no_rows() -> None:
    client = StoredClient(a_group("a", None, 1.0, 0.0))
    output = await Generator(CONFIG, lambda: client).generate(batch("a", samples=3))
    check_step_wise(output)
    assert [each.repetition_id for each in output["trajectory_ids"]] == [1, 2]
    assert output["loss_masks"] == [[1, 1, 1, 0]] * 2


async def test_a_session_that_is_left_alone_keeps_its_reward_and_trains_nothing() -> None:
    """SkyRL's estimators take mean 0 for a group of one: its raw reward would be the advantage."""
    client = StoredClient(a_group("a", None, 1.0), a_group("b", 1.0))
    generator = Generator(CONFIG, lambda: client)
    output = await generator.generate(batch("a"))
    assert (output["loss_masks"], rewards_of(output)) == ([[0, 0, 0, 0]], [1.0])
    alone_by_choice = await generator.generate(batch("b", samples=1))
    assert alone_by_choice["loss_masks"] == [[1, 1, 1, 0]]


async def test_a_session_without_trainable_tokens_is_in_the_baseline() -> None:
    client = StoredClient(Group("a", (without_trainable_tokens("a-0", 0.0), a_session("a-1", 1.0))))
    output = await Generator(CONFIG, lambda: client).generate(batch("a"))
    check_step_wise(output)
    assert (output["loss_masks"], rewards_of(output)) == ([[0], [1, 1, 1, 0]], [0.0, 1.0])


async def test_a_lost_group_runs_again() -> None:
    client = StoredClient(a_group("a", 1.0, 1.0), a_group("b", None, None), a_group("b2", 0.0, 1.0))
    output = await Generator(CONFIG, lambda: client).generate(batch("a", "b"))
    check_step_wise(output)
    assert [task.instruction for task in client.submitted] == ["Do a.", "Do b.", "Do b."]
    assert [each.instance_id for each in output["trajectory_ids"]] == ["a", "a", "b", "b"]
    assert rewards_of(output) == [1.0, 1.0, 0.0, 1.0]


async def test_a_group_that_stays_lost_has_one_row_that_trains_nothing() -> None:
    """In training SkyRL asserts that there are rows of every prompt of the batch."""
    again = [a_group(f"b{number}", None, None) for number in range(3)]
    client = StoredClient(a_group("a", 1.0, 1.0), *again)
    output = await Generator(CONFIG, lambda: client).generate(batch("a", "b"))
    check_step_wise(output)
    shown = [(each.instance_id, each.repetition_id) for each in output["trajectory_ids"]]
    assert shown == [("a", 0), ("a", 1), ("b", 0)]
    assert (output["loss_masks"][2], output["rewards"][2]) == ([0], [0.0])
    assert output["rollout_metrics"]["polar/avg_reward"] == 1.0, "the mean without it"


async def test_an_evaluation_has_the_reward_of_every_verdict_and_no_others() -> None:
    """In SkyRL's means a lost group must not be a reward of 0."""
    untrainable = (without_trainable_tokens("a-0", 1.0), a_session("a-1", 1.0, stale=True))
    again = [a_group(f"b{number}", None, None) for number in range(3)]
    client = StoredClient(Group("a", untrainable), *again)
    output = await Generator(CONFIG, lambda: client).generate(an_evaluation("a", "b"))
    check_step_wise(output)
    assert rewards_of(output) == [1.0, 1.0]
    sampling = client.submitted[0].sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop) == (0.0, 1024, ("END",))


async def test_an_evaluation_without_any_verdict_is_an_error() -> None:
    client = StoredClient(*(a_group(f"a{number}", None) for number in range(3)))
    with pytest.raises(PolarError, match=r"none of the 1 sessions of this evaluation has a verdict \(infrastr"):
        await Generator(CONFIG, lambda: client).generate(an_evaluation("a", samples=1))


async def test_training_refuses_to_sample_otherwise_than_plainly() -> None:
    client = StoredClient(a_group("a", 1.0, 0.0), a_group("b", 1.0, 0.0))
    generator = Generator(CONFIG, lambda: client)
    with pytest.raises(ConfigError, match=r"samples with temperature 0\.6, .* give the tasks a `sampling`"):
        await generator.generate({**batch("a"), "sampling_params": {**PLAINLY, "temperature": 0.6}})
    await generator.generate({**batch("a"), "sampling_params": PLAINLY})
    assert client.submitted[0].sampling.max_tokens == 1024
    own = {**batch("b"), "env_extras": [{"polar": '{"sampling": {"top_p": 0.9}}'}] * 2, "sampling_params": PLAINLY}
    await generator.generate(own)
    assert client.submitted[1].sampling.top_p == 0.9


async def test_without_step_wise_rows_it_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="step_wise_trajectories=true"):
        await Generator(CONFIG, StoredClient).generate({**batch("a"), "trajectory_ids": None})
