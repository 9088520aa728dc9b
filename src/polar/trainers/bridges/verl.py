"""verl's agent loop: one call runs one session and gives one output for each trace, the main trace last.

verl (V1 trainer) compares the sessions of a prompt itself, by the reward of each session's last output. A session
that may not be trained on gives no output, so that it is in no baseline. To one that is left alone verl gives the
raw reward as advantage. So the sessions of a prompt wait for each other, and the tokens of one that is left alone
are masked. If none is left, each raises an error, for which verl can draw another prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, cast
from weakref import WeakValueDictionary

from polar.errors import ConfigError, PolarError
from polar.trainers.bridges.config import TASK_FIELD, BridgeConfig, with_sampling
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_session
from polar.types import TaskRequest, Trace

DISTRIBUTION = ("temperature", "top_p", "top_k")
"""verl's sampling parameters that tell validation from training."""


class SessionsOfPrompt:
    """The sessions of one prompt, which verl starts side by side in one worker."""

    def __init__(self) -> None:
        self.size = 0
        self._running = 0
        self._all_ended = asyncio.Event()
        self._found: list[SessionTraces] = []

    async def run(self, session: Callable[[], Awaitable[SessionTraces]]) -> SessionTraces:
        """Returns when the others have ended too, whether with a session or an error."""
        self.size += 1
        self._running += 1
        try:
            await asyncio.sleep(0)  # verl starts all in one go, so after this all are counted
            found = await session()
            self._found.append(found)
        finally:
            self._running -= 1
            if not self._running:
                self._all_ended.set()
        await self._all_ended.wait()
        return found

    def compared(self, *, evaluation: bool) -> int:
        return sum(session.is_compared(evaluation=evaluation) for session in self._found)

    @property
    def reasons(self) -> str:
        return ", ".join(sorted({session.left_out for session in self._found if session.left_out}))


class AgentLoop:
    """An agent loop as verl calls it. In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

        - name: polar
          _target_: polar.trainers.bridges.verl.AgentLoop
          polar: {url: "http://127.0.0.1:8700", task: {harness: pi, evaluator: ...}}

    `polar` has the fields of a `BridgeConfig`. Rows of the data set choose it by `agent_name: polar`."""

    _prompts: ClassVar[WeakValueDictionary[str, SessionsOfPrompt]] = WeakValueDictionary()
    """By uid. verl makes a loop for each session, so what those of a prompt share stands here."""

    def __init__(
        self,
        polar: Mapping[str, Any],
        *,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
        trainer_config: Any = None,
        **verl: Any,
    ) -> None:
        """`verl`: what else verl gives to all agent loops, such as its tokenizer. Polar has the tokens."""
        self._config = BridgeConfig.model_validate(plain(polar))
        self._connect = connect or self._config.client
        self._trainer_config: Any = getattr(trainer_config, "config", None) or {}

    async def run(self, sampling_params: Mapping[str, Any], **row: Any) -> list[Any]:
        uid = str(row.get("uid", ""))
        if "_" in uid:
            raise ConfigError(f"uid {uid!r}: verl's replay buffer splits it at `_`; use ids without it")
        validates = self._validates(sampling_params)
        task = self._config.task_for(plain(row["raw_prompt"]), {TASK_FIELD: plain(row.get(TASK_FIELD))})
        task = with_sampling(task, sampling_params, training=not validates)
        prompt = self._prompts.setdefault(uid, SessionsOfPrompt()) if uid else SessionsOfPrompt()
        session = await prompt.run(lambda: self._run_session(task))
        compared = prompt.compared(evaluation=validates)
        if not compared and not validates:
            # Without an error the prompt would count as finished, and verl's filter of groups fails on such a one.
            raise PolarError(f"prompt {uid} has lost all of its sessions ({prompt.reasons})")
        alone = compared == 1 < prompt.size
        return outputs_of(session, weights_of(row), masked=alone, evaluation=validates)

    async def _run_session(self, task: TaskRequest) -> SessionTraces:
        async with self._connect() as client:
            return await run_session(client, self._config, task)

    def _validates(self, params: Mapping[str, Any]) -> bool:
        """verl shows it by its parameters alone, which are then those of `rollout.val_kwargs`."""
        rollout: Any = self._trainer_config.get("actor_rollout_ref", {}).get("rollout", {})
        return any(rollout.get(name, params.get(name)) != params.get(name) for name in DISTRIBUTION)


def outputs_of(
    session: SessionTraces, weights: int, *, masked: bool = False, evaluation: bool = False
) -> list[Any]:
    """verl's `AgentLoopOutput`s of a session; none if its reward is not compared.

    weights: the version to assume where none is known. masked: nothing is trained on."""
    types = load("verl.experimental.agent_loop.agent_loop", "'verl[verl-core]==0.9.1'")
    result = session.result
    timings = types.AgentLoopMetrics(
        generate_sequences=result.stage_s.get("RUNNING", 0.0), compute_score=result.stage_s.get("POSTRUN", 0.0)
    )
    # verl copies the second to the outputs before the last, and fails where it is missing. No `acc` is in it: of
    # that verl's validation counts each lost session as 0.
    of_session = {
        "session_id": result.session_id,
        "reward_extra_info": dict(result.score.metrics) if result.score else {},
    }
    traces: list[Trace | None] = [item.trace for item in session.traces]
    if not traces and session.is_compared(evaluation=evaluation):
        traces = [None]
    return [
        types.AgentLoopOutput(
            **_tokens(trace, masked=masked),
            reward_score=session.reward,
            num_turns=2 * (len(trace.spans) if trace else result.statistics.calls),
            metrics=timings,
            extra_fields={**of_session, **_steps(trace, weights)},
        )
        for trace in traces
    ]


def weights_of(row: Mapping[str, Any]) -> int:
    """The version of the weights when verl started the row's step: steps count from 1, and each ends with an
    update."""
    return max(0, int(row.get("global_steps", 0)) - 1)


def _tokens(trace: Trace | None, *, masked: bool) -> dict[str, list[Any]]:
    """Without a trace, a token that carries the reward and trains nothing."""
    if trace is None:
        return {"prompt_ids": [0], "response_ids": [0], "response_mask": [0], "response_logprobs": [0.0]}
    mask = trace.loss_mask.tolist()
    return {
        "prompt_ids": trace.prompt_ids.tolist(),
        "response_ids": trace.response_ids.tolist(),
        "response_mask": [0] * len(mask) if masked else mask,
        "response_logprobs": trace.logprobs.tolist(),
    }


def _steps(trace: Trace | None, weights: int) -> dict[str, int]:
    """The first and last version that sampled a token of the trace. verl wants whole numbers from every output."""
    versions = trace.policy_versions if trace else ()
    steps = [int(version) if version.isdecimal() else weights for version in versions] or [weights]
    return {"min_global_steps": min(steps), "max_global_steps": max(steps)}


def plain(value: Any) -> Any:
    """Values from YAML readers and data sets, such as OmegaConf's, as dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) or hasattr(value, "tolist"):  # the second: arrays of numpy, from parquet files
        return [plain(each) for each in cast("Sequence[Any]", value)]
    return value
