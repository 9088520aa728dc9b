"""verl's agent loop: one call runs one session and gives one output for each trace, the main trace last.

verl (V1 trainer) compares the sessions of a prompt itself, by the reward of each session's last output. A session
that may not be trained on gives no output, so that it is in no baseline; an exception would take the whole prompt
out of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from polar.errors import ConfigError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_session
from polar.types import Trace


class AgentLoop:
    """An agent loop as verl calls it. In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

        - name: polar
          _target_: polar.trainers.bridges.verl.AgentLoop
          polar: {url: "http://127.0.0.1:8700", task: {harness: pi, evaluator: ...}}

    `polar` has the fields of a `BridgeConfig`. Rows of the data set choose it by `agent_name: polar`."""

    def __init__(
        self,
        polar: Mapping[str, Any],
        *,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
        **verl: Any,
    ) -> None:
        """`verl`: what verl gives to all agent loops, such as its tokenizer. Not needed: Polar has the tokens."""
        self._config = BridgeConfig.model_validate(plain(polar))
        self._connect = connect or self._config.client

    async def run(self, sampling_params: Mapping[str, Any], **row: Any) -> list[Any]:
        if "_" in str(row.get("uid", "")):
            raise ConfigError(f"uid {row['uid']!r}: verl's replay buffer splits it at `_`; use ids without it")
        task = self._config.task_for(plain(row["raw_prompt"]), {"polar": plain(row.get("polar"))})
        if "sampling" not in self._config.task:
            task = task.model_copy(update={"sampling": task.sampling.model_copy(update=sampling(sampling_params))})
        async with self._connect() as client:
            return outputs_of(await run_session(client, self._config, task))


def outputs_of(session: SessionTraces) -> list[Any]:
    """verl's `AgentLoopOutput`s of a session; none if it may not be trained on."""
    types = load("verl.experimental.agent_loop.agent_loop", "'verl[verl-core]==0.9.1'")
    result = session.result
    timings = types.AgentLoopMetrics(
        generate_sequences=result.stage_s.get("RUNNING", 0.0), compute_score=result.stage_s.get("POSTRUN", 0.0)
    )
    # verl copies both to the outputs before the last, and fails where the second is missing.
    of_session = {
        "session_id": result.session_id,
        "reward_extra_info": {**(result.score.metrics if result.score else {}), "acc": session.reward},
    }
    return [
        types.AgentLoopOutput(
            prompt_ids=item.trace.prompt_ids.tolist(),
            response_ids=item.trace.response_ids.tolist(),
            response_mask=item.trace.loss_mask.tolist(),
            response_logprobs=item.trace.logprobs.tolist(),
            reward_score=session.reward,
            num_turns=2 * len(item.trace.spans),
            metrics=timings,
            extra_fields={**of_session, **_steps(item.trace)},
        )
        for item in session.traces
    ]


def sampling(params: Mapping[str, Any]) -> dict[str, Any]:
    """verl's sampling parameters as fields of a task's; its top_k of -1 means all tokens."""
    found = {name: float(params[name]) for name in ("temperature", "top_p") if name in params}
    return {**found, "top_k": max(0, int(params.get("top_k", 0)))}


def _steps(trace: Trace) -> dict[str, int]:
    """The first and last policy version of a trace, if versions are verl's steps."""
    versions = trace.policy_versions
    if not all(version.isdecimal() for version in versions):
        return {}
    steps = [int(version) for version in versions]
    return {"min_global_steps": min(steps), "max_global_steps": max(steps)} if steps else {}


def plain(value: Any) -> Any:
    """Values from YAML readers and data sets, such as OmegaConf's, as dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) or hasattr(value, "tolist"):  # the second: arrays of numpy, from parquet files
        return [plain(each) for each in cast("Sequence[Any]", value)]
    return value
