"""From a trainer's task to its batch, over a real rollout server and a real node."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from test_nemo_gym_bridge import a_body
from test_skyrl_bridge import batch, check_step_wise
from test_slime_bridge import DataSource, flat
from test_verifiers_nodes import joined, path
from test_verl_bridge import ROW, SAMPLING
from trainer_types import provide_slime, provide_verl
from training_service import training_service

from polar.client import SyncPolarClient
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.trainers.bridges import slime, slime_async
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym import run_request
from polar.trainers.bridges.prime_rl import nodes_of
from polar.trainers.bridges.sessions import run_session
from polar.trainers.bridges.skyrl import Generator
from polar.trainers.bridges.trl import RolloutFunction
from polar.trainers.bridges.verl import AgentLoop


@pytest.fixture(scope="module")
def fields(smollm2: SmolLM2Renderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with training_service(smollm2, tmp_path_factory.mktemp("service")) as fields:
        yield fields


def captured(fields: dict[str, Any], session_id: str) -> list[tuple[list[int], list[int]]]:
    """What the server has of a session: ids and mask of each trace."""
    with SyncPolarClient(fields["url"], fields["token"]) as client:
        traces = client.trajectory(session_id).traces
    return [([*trace.prompt_ids, *trace.response_ids], trace.loss_mask.tolist()) for trace in traces]


def test_trl_gets_a_row_for_each_prompt(fields: dict[str, Any]) -> None:
    rollout = RolloutFunction(BridgeConfig.model_validate(fields))
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=1), args=SimpleNamespace(temperature=1.0))
    rows = rollout(["Write."] * 4 + ["Write again."] * 4, trainer)
    assert {len(column) for column in rows.values()} == {8}
    assert sorted(rows["polar_reward"]) == [0.0] * 4 + [1.0] * 4
    for ids, mask, logprobs in zip(rows["completion_ids"], rows["env_mask"], rows["logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs) and set(mask) == {0, 1}
        assert all((value < 0) == bool(trained) for value, trained in zip(logprobs, mask, strict=True))


@pytest.mark.parametrize("module", [slime, slime_async], ids=["sync", "async"])
def test_slime_gets_the_tokens_of_each_session(
    fields: dict[str, Any], module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide_slime(monkeypatch)
    args = SimpleNamespace(rollout_batch_size=2, polar=without_instruction(fields))
    source = DataSource(samples=4)
    for rollout_id in range(2):
        samples = flat(module.generate_rollout(args, rollout_id, source).samples)
        raw, rewards = slime.post_process_rewards(args, samples)
        assert len(samples) == 8 and len({sample.rollout_id for sample in samples}) == 8
        assert set(raw) <= {0.0, 1.0} and sum(rewards) == pytest.approx(0.0, abs=1e-6)
        for sample in samples:
            assert captured(fields, sample.session_id) == [(sample.tokens, sample.loss_mask)]


async def test_verl_gets_outputs_of_one_session(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    provide_verl(monkeypatch)
    outputs = await AgentLoop(fields).run(SAMPLING, **ROW)
    (output,) = outputs
    session_id = output.extra_fields["session_id"]
    assert captured(fields, session_id) == [([*output.prompt_ids, *output.response_ids], output.response_mask)]
    assert output.reward_score in (0.0, 1.0) and output.num_turns == 4


async def test_skyrl_gets_rows_of_each_session(fields: dict[str, Any]) -> None:
    rows_in = batch("a", "b")
    output = await Generator(BridgeConfig.model_validate(without_instruction(fields))).generate(rows_in)
    check_step_wise(output)
    assert sorted(sum(rewards) for rewards in output["rewards"]) == [0.0, 0.0, 1.0, 1.0]
    assert all(set(mask) == {0, 1} for mask in output["loss_masks"])


async def test_nemo_gym_gets_one_chain_of_calls(fields: dict[str, Any]) -> None:
    config = BridgeConfig.model_validate(without_instruction(fields))
    async with config.client() as client:
        answer = await run_request(client, config, a_body(_ng_rollout_id="7-0"))
        (task_id,) = (await client.group("7-0")).task_ids
    first, last = [item for item in answer["response"]["output"] if "generation_token_ids" in item]
    before = [*first["prompt_token_ids"], *first["generation_token_ids"]]
    assert last["prompt_token_ids"][: len(before)] == before
    ((ids, mask),) = captured(fields, f"{task_id}-0")
    assert [*last["prompt_token_ids"], *last["generation_token_ids"]] == ids
    assert len(first["generation_token_ids"]) + len(last["generation_token_ids"]) == sum(mask)


async def test_verifiers_gets_the_calls_as_nodes(fields: dict[str, Any]) -> None:
    config = BridgeConfig.model_validate(without_instruction(fields))
    async with config.client() as client:
        session = await run_session(client, config, config.task_for("Write."))
        upload = await client.upload(session.result.session_id)
    nodes, calls = nodes_of(upload.calls, session)
    main = path(nodes, calls[-1]["node"])
    assert [node["message"]["role"] for node in main] == ["user", "assistant", "tool", "assistant"]
    ((ids, mask),) = captured(fields, session.result.session_id)
    assert joined(main, "token_ids") == ids and sum(joined(main, "mask")) == sum(mask)


def without_instruction(fields: dict[str, Any]) -> dict[str, Any]:
    """The instruction comes from the trainer's row."""
    return {**fields, "task": {name: value for name, value in fields["task"].items() if name != "instruction"}}
