"""TRL's `GRPOTrainer`: a `rollout_func` that runs sessions, and the reward function that reads their rewards.

TRL takes exactly one row for each prompt and tells groups by position. So each session gives its main trace, and a
session that may not be trained on gives a row without trainable tokens whose reward is None: TRL leaves it out of
the baseline.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import groupby
from typing import Any

from polar.errors import ConfigError
from polar.runs.event_loop import run_apart
from polar.trainers.bridges.config import TASK_FIELD, BridgeConfig, instruction_of
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_groups, sessions_of
from polar.types import Sampling, TaskRequest

REWARD = "polar_reward"
"""The extra column of a rollout; TRL hands it to reward functions by name."""
TasksByPrompt = Mapping[str, Mapping[str, Any]]
"""Fields of the task of each instruction. TRL gives a `rollout_func` the prompts alone, no other column."""


class RolloutFunction:
    """Pass it as `GRPOTrainer(rollout_func=...)`, with `session_reward` among `reward_funcs`, and the others in
    `scored`.

    The policy version of the sessions is the trainer's step. before_rollout: called with the trainer before
    sessions start, when it has made a step since the last time: the place to give the engine new weights. Not
    needed with `use_vllm`, where TRL does it itself."""

    def __init__(
        self,
        config: BridgeConfig,
        *,
        tasks: TasksByPrompt | None = None,
        before_rollout: Callable[[Any], None] | None = None,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
    ) -> None:
        self._config = config
        self._tasks = tasks or {}
        self._before_rollout = before_rollout
        self._connect = connect or config.client
        self._step: int | None = None

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        check_temperature(trainer, self._config)
        step = int(trainer.state.global_step)
        if self._before_rollout is not None and step != self._step:
            self._before_rollout(trainer)
        self._step = step
        sessions = run_apart(self._run(self._tasks_for(prompts), str(step)))
        if len(sessions) != len(prompts):
            raise RuntimeError(f"{len(sessions)} sessions for {len(prompts)} prompts")
        return rows_of(sessions)

    def _tasks_for(self, prompts: list[Any]) -> list[TaskRequest]:
        """One task for equal prompts in a row: TRL has repeated each prompt once per generation."""
        return [self._task(prompt, len(list(equal))) for prompt, equal in groupby(prompts)]

    def _task(self, prompt: Any, samples: int) -> TaskRequest:
        return self._config.task_for(prompt, {TASK_FIELD: self._tasks.get(instruction_of(prompt))}, samples)

    async def _run(self, tasks: list[TaskRequest], version: str) -> list[SessionTraces]:
        async with self._connect() as client:
            await client.set_policy_version(version)
            groups = await run_groups(client, tasks)
        return [session for group in groups for session in sessions_of(group, self._config, version)]


def rows_of(sessions: Sequence[SessionTraces]) -> dict[str, list[Any]]:
    """One row for each session, as `rollout_func` returns them."""
    rows: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", REWARD)
    }
    for session in sessions:
        for name, value in _row(session).items():
            rows[name].append(value)
    return rows


def session_reward(*, prompts: Sequence[Any], **columns: Any) -> list[float | None]:
    """The reward of each session, for `GRPOTrainer(reward_funcs=[session_reward])`. None: it may not be trained
    on."""
    if REWARD not in columns:
        raise ValueError(f"session_reward reads the column {REWARD!r}: pass rollout_func=RolloutFunction(...) too")
    return list(columns[REWARD])


def scored(reward_function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function that may stand beside `session_reward`: None for the sessions that have no reward. TRL
    leaves a session out only if every function says None; else its reward is 0 and the rest."""
    function = reward_function
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        async def later(**columns: Any) -> list[float | None]:
            return _where_scored(await reward_function(**columns), columns)

        return _named(later, function)

    def now(**columns: Any) -> list[float | None]:
        return _where_scored(reward_function(**columns), columns)

    return _named(now, function)


def check_temperature(trainer: Any, config: BridgeConfig) -> None:
    """TRL divides its logits by its own temperature, whatever the sessions were sampled at. `RolloutFunction` does
    this check itself; with `AsyncGRPOTrainer`, call it before training."""
    sampled = Sampling.model_validate(config.task.get("sampling") or {}).temperature
    if trainer.args.temperature != sampled:
        raise ConfigError(
            f"the trainer's temperature is {trainer.args.temperature:g}, but Polar samples at {sampled:g}: set "
            f"temperature={sampled:g} in the trainer's arguments"
        )


def _where_scored(rewards: Sequence[float | None], columns: Mapping[str, Any]) -> list[float | None]:
    counted = session_reward(**columns)
    return [None if own is None else reward for own, reward in zip(counted, rewards, strict=True)]


def _named(scored: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """As TRL names the function's columns in its log."""
    scored.__name__ = getattr(function, "__name__", type(function).__name__)
    return scored


def _row(session: SessionTraces) -> dict[str, Any]:
    if not session.traces:
        # TRL needs a row. Token 0 without a mask trains nothing.
        reward = session.result.reward if session.result.in_baseline else None
        return {"prompt_ids": [0], "completion_ids": [0], "logprobs": [0.0], "env_mask": [0], REWARD: reward}
    trace = session.main.trace
    return {
        "prompt_ids": trace.prompt_ids.tolist(),
        "completion_ids": trace.response_ids.tolist(),
        "logprobs": trace.logprobs.tolist(),
        "env_mask": trace.loss_mask.tolist(),
        REWARD: session.reward,
    }
