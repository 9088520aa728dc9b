"""verl's own functions on the outputs of the bridge. Collected where verl is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
import numpy
import pytest
import torch
from omegaconf import OmegaConf
from stored_groups import StoredClient, a_session, a_trace
from test_verl_bridge import ROW, SAMPLING, a_loop
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from polar.credit.group import Group

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]


async def test_verl_makes_rows_and_advantages_of_it() -> None:
    """The real package: three sessions of one prompt, of which the first has two traces."""
    sessions = [
        a_session("a-0", 1.0, a_trace("a-0"), a_trace("a-0", [8], kind="subagent")),
        a_session("b-0", 0.0),
        a_session("c-0", 0.5),
    ]
    keys: list[str] = []
    rows: list[dict[str, Any]] = []
    for number, session in enumerate(sessions):
        name = session.result.task_id
        for index, output in enumerate(await a_loop(StoredClient(Group(name, (session,)))).run(SAMPLING, **ROW)):
            keys.append(f"{ROW['uid']}_{number}_{index}")
            rows.append(output.as_dict())
    assert [row["rm_scores"].sum().item() for row in rows] == [1.0, 1.0, 0.0, 0.5]
    width = max(len(row["responses"]) for row in rows)

    def padded(name: str) -> Any:
        return torch.stack([torch.nn.functional.pad(row[name], (0, width - len(row[name]))) for row in rows])

    data = DataProto.from_dict(
        tensors={
            "response_mask": padded("response_mask"),
            "token_level_rewards": padded("rm_scores"),
            "responses": padded("responses"),
        },
        non_tensors={"uid": numpy.array([ROW["uid"]] * len(rows), dtype=object)},
    )
    found = compute_advantage_for_multi_trajectories(data, keys, "grpo")
    first = found.batch["advantages"][:, 0].tolist()
    assert [round(value, 2) for value in first] == [1.0, 1.0, -1.0, 0.0]
    assert not found.batch["advantages"][~data.batch["response_mask"].bool()].any()


async def test_verl_makes_the_loop_from_its_yaml_file(tmp_path: Path) -> None:
    """As its worker does, with what it gives to all agent loops."""
    (tmp_path / "loops.yaml").write_text(
        "- name: polar\n"
        "  _target_: polar.trainers.bridges.verl.AgentLoop\n"
        "  polar: {url: 'http://127.0.0.1:1', task: {harness: {name: pi, options: {tools: [bash]}}}}\n"
    )
    (entry,) = OmegaConf.load(tmp_path / "loops.yaml")
    client = StoredClient(Group("a", (a_session("a-0", 1.0),)))
    loop = hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(config=OmegaConf.create({})),
        server_manager=None,
        tokenizer=None,
        processor=None,
        hf_model_type="llama",
        dataset_cls=None,
        data_config=DictConfigWrap(config=OmegaConf.create({})),
        connect=lambda: client,
    )
    (output,) = await loop.run(SAMPLING, **ROW)
    assert isinstance(output, AgentLoopOutput) and output.reward_score == 1.0
    assert client.submitted[0].harness.options == {"tools": ["bash"]}
