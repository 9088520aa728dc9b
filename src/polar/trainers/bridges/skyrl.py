"""SkyRL's generator, for `generator.step_wise_trajectories=true`: one row for each trace, the main trace last.

SkyRL takes the advantage from the last row of each session and gives it to the others, so the reward stands on the
last token of the main trace. A session that may not be trained on has no rows, and so is in no baseline. To one
that is left alone in its group SkyRL gives the raw reward as advantage, so its rows are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from polar.credit.group import Group
from polar.errors import ConfigError, PolarError
from polar.trainers.bridges.config import BridgeConfig, with_sampling
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
MOST_LOSSES = 3
"""How often a group may lose all of its sessions; before that it runs again."""


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
        evaluation = is_evaluation(input_batch)
        positions = _by_instance(ids)
        tasks = [self._task(input_batch, places, evaluation) for places in positions.values()]
        groups = await self._run(tasks, evaluation)
        output: dict[str, Any] = {name: [] for name in ROW_FIELDS}
        for places, sessions in zip(positions.values(), groups, strict=True):
            add_group(output, [ids[place] for place in places], sessions, evaluation=evaluation)
        everything = [session for sessions in groups for session in sessions]
        if not output["response_ids"]:
            reasons = ", ".join(sorted({session.left_out for session in everything}))
            raise PolarError(
                f"none of the {len(everything)} sessions of this evaluation has a verdict ({reasons})"
            )
        metrics = _metrics(everything, evaluation)
        return {**output, "rollout_metrics": metrics, "rollout_expert_indices": None}

    async def _run(self, tasks: Sequence[TaskRequest], evaluation: bool) -> list[list[SessionTraces]]:
        """The sessions of each task. A task that lost all of them runs again."""
        found: dict[int, list[SessionTraces]] = {}
        async with self._connect() as client:
            for _ in range(MOST_LOSSES):
                missing = [n for n in range(len(tasks)) if not _compared(found.get(n, ()), evaluation)]
                if not missing:
                    break
                groups = await run_groups(client, [tasks[n] for n in missing])
                found |= dict(zip(missing, await self._sessions(client, groups), strict=True))
        return [found[n] for n in range(len(tasks))]

    async def _sessions(self, client: GroupClient, groups: Sequence[Group]) -> list[list[SessionTraces]]:
        version = (await client.policy()).version
        return [sessions_of(group, self._config, version) for group in groups]

    def _task(self, batch: Mapping[str, Any], places: Sequence[int], evaluation: bool) -> TaskRequest:
        extras = batch.get("env_extras")
        task = self._config.task_for(
            batch["prompts"][places[0]], extras[places[0]] if extras else None, samples=len(places)
        )
        return with_sampling(task, batch.get("sampling_params") or {}, training=not evaluation)


def is_evaluation(batch: Mapping[str, Any]) -> bool:
    return getattr(batch.get("batch_metadata"), "training_phase", "train") == "eval"


def add_group(
    output: dict[str, Any], ids: Sequence[Any], sessions: Sequence[SessionTraces], *, evaluation: bool = False
) -> None:
    """Appends the rows of one prompt. For training SkyRL wants at least one from every prompt."""
    compared = _compared(sessions, evaluation)
    if not compared and not evaluation:
        _append(output, ids[0], _masked_row(sessions[0], 0.0))
    alone = len(compared) == 1 < len(sessions) and not evaluation
    for trajectory_id, session in zip(ids, sessions, strict=True):
        if not session.traces and session in compared:
            _append(output, trajectory_id, _masked_row(session, session.reward))
        for item in session.traces:
            row = _row(session, item.trace, is_last=item is session.main)
            if alone:
                row["loss_masks"] = [0] * len(row["loss_masks"])
            _append(output, trajectory_id, row)


def _compared(sessions: Sequence[SessionTraces], evaluation: bool) -> list[SessionTraces]:
    return [session for session in sessions if session.is_compared(evaluation=evaluation)]


def _row(session: SessionTraces, trace: Trace, *, is_last: bool) -> dict[str, Any]:
    response = trace.response_ids.tolist()
    rewards = [0.0] * len(response)
    if is_last:
        rewards[-1] = session.reward
    return {
        **_of_session(session),
        "prompt_token_ids": trace.prompt_ids.tolist(),
        "response_ids": response,
        # By token: SkyRL's filter of groups without variance would count the 0 of each other row.
        "rewards": rewards,
        "loss_masks": trace.loss_mask.tolist(),
        "rollout_logprobs": trace.logprobs.tolist(),
        "is_last_step": is_last,
    }


def _masked_row(session: SessionTraces, reward: float) -> dict[str, Any]:
    """Carries a reward and trains nothing."""
    return {
        **_of_session(session),
        "prompt_token_ids": [0],
        "response_ids": [0],
        "rewards": [reward],
        "loss_masks": [0],
        "rollout_logprobs": [0.0],
        "is_last_step": True,
    }


def _of_session(session: SessionTraces) -> dict[str, Any]:
    return {
        "stop_reasons": "length" if session.was_cut else "stop",
        "trajectory_generation_times": session.result.stage_s.get("RUNNING", 0.0),
        "env_metrics": dict(session.result.score.metrics) if session.result.score else {},
    }


def _append(output: dict[str, Any], trajectory_id: Any, row: Mapping[str, Any]) -> None:
    for name, value in {**row, "trajectory_ids": trajectory_id}.items():
        output[name].append(value)


def _by_instance(ids: Sequence[Any]) -> dict[str, list[int]]:
    """The places of each prompt in the batch: SkyRL repeats a prompt once for each sample."""
    found: dict[str, list[int]] = {}
    for place, trajectory_id in enumerate(ids):
        found.setdefault(trajectory_id.instance_id, []).append(place)
    return found


def _metrics(sessions: Sequence[SessionTraces], evaluation: bool) -> dict[str, float]:
    """SkyRL takes the mean of what is called `avg` over batches, and else the sum."""
    compared = _compared(sessions, evaluation)
    metrics: dict[str, float] = {
        "polar/sessions": len(sessions),
        "polar/left_out": len(sessions) - len(compared),
        "polar/traces": sum(len(session.traces) for session in sessions),
    }
    if compared:
        metrics["polar/avg_reward"] = sum(session.reward for session in compared) / len(compared)
    return metrics
