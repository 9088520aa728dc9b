"""SkyRL's side: its input batch in, step-wise rows out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from stored_groups import StoredClient, a_group, a_session, a_trace

from polar.credit.group import Group
from polar.errors import ConfigError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.skyrl import Generator

CONFIG = BridgeConfig(task={"harness": "pi"})


@dataclass
class TrajectoryID:
    """As SkyRL 0.3.0 and 0.4.0 have it."""

    instance_id: str
    repetition_id: int


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
    assert output["rollout_metrics"] == {"polar/sessions": 4, "polar/left_out": 0, "polar/traces": 5}
    assert [(task.instruction, task.num_samples, task.files) for task in client.submitted] == [
        ("Do a.", 2, {"n.txt": "a"}),
        ("Do b.", 2, {"n.txt": "b"}),
    ]


async def test_a_lost_session_has_no_rows_and_a_lost_group_has_one_that_trains_nothing() -> None:
    client = StoredClient(a_group("a", None, 1.0), a_group("b", None, None))
    output = await Generator(CONFIG, lambda: client).generate(batch("a", "b"))
    check_step_wise(output)
    shown = [(each.instance_id, each.repetition_id) for each in output["trajectory_ids"]]
    assert shown == [("a", 1), ("b", 0)]
    assert output["loss_masks"][1] == [0] and output["rewards"][1] == [0.0]


async def test_without_step_wise_rows_it_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="step_wise_trajectories=true"):
        await Generator(CONFIG, StoredClient).generate({**batch("a"), "trajectory_ids": None})
