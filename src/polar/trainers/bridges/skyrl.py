"""SkyRL's generator, for `generator.step_wise_trajectories=true`: one row for each trace, the main trace last.

SkyRL takes the advantage from the last row of each session and gives it to the others, so the reward stands on the
last token of the main trace. A session that may not be trained on has no rows, and so is in no baseline; a group
that lost all of its sessions has one row without trainable tokens, so that the prompt stays in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from polar.errors import ConfigError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_groups, sessions_of
from polar.types import TaskRequest, Trace

ROW_FIELDS = (
    "prompt_token_ids",
    "response_ids",
    "rewards",
    "loss_masks",
    "stop_reasons",
    "rollout_logprobs",
    "trajectory_ids",
    "trajectory_generation_times",
    "is_last_step",
    "env_metrics",
)


class Generator:
    """A `GeneratorInterface` of SkyRL. Return it from `get_generator` of your `BasePPOExp`:

    def get_generator(self, cfg, tokenizer, inference_engine_client):
        return Generator(BridgeConfig(task={"harness": "pi", "evaluator": ...}))

    Rows of the data set may have the fields of their task in a column `polar`."""

    def __init__(
        self,
        config: BridgeConfig,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
    ) -> None:
        self._config = config
        self._connect = connect or config.client

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        ids = input_batch.get("trajectory_ids")
        if not ids:
            raise ConfigError("SkyRL gave no trajectory_ids: set generator.step_wise_trajectories=true")
        positions = _by_instance(ids)
        tasks = [self._task(input_batch, places) for places in positions.values()]
        async with self._connect() as client:
            groups = await run_groups(client, tasks)
            version = (await client.policy()).version
        output: dict[str, Any] = {name: [] for name in ROW_FIELDS}
        everything: list[SessionTraces] = []
        for places, group in zip(positions.values(), groups, strict=True):
            sessions = sessions_of(group, self._config, version)
            everything += sessions
            add_group(output, [ids[place] for place in places], sessions)
        return {**output, "rollout_metrics": _metrics(everything), "rollout_expert_indices": None}

    def _task(self, batch: Mapping[str, Any], places: Sequence[int]) -> TaskRequest:
        extras = batch.get("env_extras")
        return self._config.task_for(
            batch["prompts"][places[0]], extras[places[0]] if extras else None, samples=len(places)
        )


def add_group(output: dict[str, Any], ids: Sequence[Any], sessions: Sequence[SessionTraces]) -> None:
    """Appends the rows of one prompt."""
    if not any(session.traces for session in sessions):
        _add(output, ids[0], sessions[0], None, is_last=True)
        return
    for trajectory_id, session in zip(ids, sessions, strict=True):
        for item in session.traces:
            _add(output, trajectory_id, session, item.trace, is_last=item is session.main)


def _add(
    output: dict[str, Any], trajectory_id: Any, session: SessionTraces, trace: Trace | None, *, is_last: bool
) -> None:
    response = trace.response_ids.tolist() if trace else [0]
    rewards = [0.0] * len(response)
    if trace and is_last:
        rewards[-1] = session.reward
    row = {
        "prompt_token_ids": trace.prompt_ids.tolist() if trace else [0],
        "response_ids": response,
        # By token: SkyRL's filter of groups without variance would count the 0 of each other row.
        "rewards": rewards,
        "loss_masks": trace.loss_mask.tolist() if trace else [0],
        "stop_reasons": "length" if session.was_cut else "stop",
        "rollout_logprobs": trace.logprobs.tolist() if trace else [0.0],
        "trajectory_ids": trajectory_id,
        "trajectory_generation_times": session.result.stage_s.get("RUNNING", 0.0),
        "is_last_step": is_last,
        "env_metrics": dict(session.result.score.metrics) if session.result.score else {},
    }
    for name, value in row.items():
        output[name].append(value)


def _by_instance(ids: Sequence[Any]) -> dict[str, list[int]]:
    """The places of each prompt in the batch: SkyRL repeats a prompt once for each sample."""
    found: dict[str, list[int]] = {}
    for place, trajectory_id in enumerate(ids):
        found.setdefault(trajectory_id.instance_id, []).append(place)
    return found


def _metrics(sessions: Sequence[SessionTraces]) -> dict[str, float]:
    left_out = sum(not session.traces for session in sessions)
    traces = sum(len(session.traces) for session in sessions)
    return {"polar/sessions": len(sessions), "polar/left_out": left_out, "polar/traces": traces}
