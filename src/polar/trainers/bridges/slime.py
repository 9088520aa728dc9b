"""slime's rollout function: sessions for each prompt, one `Sample` for each trace, and the rewards of groups.

`--rollout-function-path polar.trainers.bridges.slime.generate_rollout`, and with it
`--custom-reward-post-process-path polar.trainers.bridges.slime.post_process_rewards`: slime's own takes the whole
batch for one group as soon as a session has two traces. `generate_rollout_async` keeps sessions under way while
the trainer trains. All are configured by `polar` in slime's `--custom-config-path`, with the fields of a
`BridgeConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from polar.credit.advantages import CreditedTrace
from polar.errors import ConfigError
from polar.runs.event_loop import run_apart
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, advantage_of, run_groups, sessions_of
from polar.types import Sampling, TaskRequest

INSTALL = "git+https://github.com/THUDM/slime"
ADVANTAGE = "polar_advantage"
LEFT_OUT = "polar_left_out"


class SlimeTypes(NamedTuple):
    Sample: Any
    TrainOutput: Any
    EvalOutput: Any


def slime_types() -> SlimeTypes:
    outputs = load("slime.rollout.base_types", INSTALL)
    return SlimeTypes(
        load("slime.utils.types", INSTALL).Sample, outputs.RolloutFnTrainOutput, outputs.RolloutFnEvalOutput
    )


def config_of(args: Any) -> BridgeConfig:
    if getattr(args, "rollout_top_p", 1.0) != 1.0:
        raise ConfigError("--rollout-top-p must be 1: slime would want the tokens that top-p kept at each step")
    config = BridgeConfig.model_validate(getattr(args, "polar", None) or {})
    sampled = Sampling.model_validate(config.task.get("sampling") or {}).temperature
    if getattr(args, "rollout_temperature", sampled) != sampled:
        raise ConfigError(
            f"--rollout-temperature must be {sampled:g}, as in Polar: slime divides its logits by it"
        )
    return config


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Runs the next prompts of the data source and waits for all of their sessions."""
    if evaluation:
        return run_apart(_evaluate(args, config_of(args)))
    prompts = data_source.get_samples(args.rollout_batch_size)
    sessions = run_apart(_run(config_of(args), prompts))
    return train_output(prompts, sessions)


def train_output(prompts: Sequence[Sequence[Any]], sessions: Sequence[Sequence[SessionTraces]]) -> Any:
    """slime's output: groups of sessions of samples."""
    types = slime_types()
    groups = [
        [samples_of(prompt, session) for prompt, session in zip(group, finished, strict=True)]
        for group, finished in zip(prompts, sessions, strict=True)
    ]
    everything = [session for finished in sessions for session in finished]
    return types.TrainOutput(samples=groups, metrics=metrics_of(everything))


def samples_of(prompt: Any, session: SessionTraces) -> list[Any]:
    """The samples of one session, which share the `rollout_id`: slime's loss is a mean over rollouts. All have the
    session's full reward. A session that may not be trained on gives a placeholder, because slime counts
    rollouts."""
    status = cast("Any", type(prompt)).Status
    if not session.traces:
        return [_placeholder(prompt, session, status.ABORTED)]
    end = status.TRUNCATED if session.was_cut else status.COMPLETED
    return [_sample(prompt, session, item, end) for item in session.traces]


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and the advantages that the bridge has computed over the sessions of each group. Sessions that
    are left out have 0 and are in no baseline."""
    return [float(sample.reward) for sample in samples], [float(sample.metadata[ADVANTAGE]) for sample in samples]


def metrics_of(sessions: Sequence[SessionTraces]) -> dict[str, float]:
    counted = [session.reward for session in sessions if session.result.in_baseline]
    left_out = sum(not session.traces for session in sessions)
    return {
        "polar/sessions": float(len(sessions)),
        "polar/left_out": float(left_out),
        "polar/traces": float(sum(len(session.traces) for session in sessions)),
        "polar/reward": sum(counted) / len(counted) if counted else 0.0,
    }


def tasks_for(config: BridgeConfig, prompts: Sequence[Sequence[Any]]) -> list[TaskRequest]:
    return [config.task_for(group[0].prompt, _fields(group[0]), len(group)) for group in prompts]


async def run_prompts(
    client: GroupClient, config: BridgeConfig, prompts: Sequence[Sequence[Any]]
) -> list[list[SessionTraces]]:
    """The sessions of each prompt, one for each of its samples."""
    groups = await run_groups(client, tasks_for(config, prompts))
    version = (await client.policy()).version
    return [sessions_of(group, config, version) for group in groups]


async def _run(config: BridgeConfig, prompts: Sequence[Sequence[Any]]) -> list[list[SessionTraces]]:
    async with config.client() as client:
        return await run_prompts(client, config, prompts)


def _fields(sample: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", sample.metadata or {})


def _sample(prompt: Any, session: SessionTraces, item: CreditedTrace, status: Any) -> Any:
    trace = item.trace
    response = trace.response_ids.tolist()
    return _filled(
        prompt,
        session,
        tokens=[*trace.prompt_ids.tolist(), *response],
        response_length=len(response),
        loss_mask=trace.loss_mask.tolist(),
        rollout_log_probs=trace.logprobs.tolist(),
        weight_versions=list(trace.policy_versions),
        reward=session.reward,
        status=status,
        metadata={**_fields(prompt), ADVANTAGE: advantage_of(item)},
    )


def _placeholder(prompt: Any, session: SessionTraces, status: Any) -> Any:
    """Two tokens of which none is trained on. It has logprobs, because slime wants them in all samples or none."""
    return _filled(
        prompt,
        session,
        tokens=[0, 0],
        response_length=1,
        loss_mask=[0],
        rollout_log_probs=[0.0],
        reward=session.reward if session.result.in_baseline else 0.0,
        remove_sample=True,
        status=status,
        metadata={**_fields(prompt), ADVANTAGE: 0.0, LEFT_OUT: session.left_out},
    )


def _filled(prompt: Any, session: SessionTraces, **fields: Any) -> Any:
    """A copy of the data source's sample with the fields of a session."""
    sample = copy(prompt)
    if sample.rollout_id is None:
        sample.rollout_id = sample.index
    sample.session_id = session.result.session_id
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


async def _evaluate(args: Any, config: BridgeConfig) -> Any:
    """All sessions of slime's evaluation sets. Infrastructure's failures have no reward, and so are not in the
    mean."""
    types = slime_types()
    found: dict[str, dict[str, list[Any]]] = {}
    async with config.client() as client:
        for data_set in getattr(args, "eval_datasets", None) or ():
            prompts = _eval_prompts(data_set, types.Sample)
            sessions = await run_prompts(client, config, prompts)
            found[data_set.name] = eval_entry(prompts, sessions)
    return types.EvalOutput(data=found)


def eval_entry(
    prompts: Sequence[Sequence[Any]], sessions: Sequence[Sequence[SessionTraces]]
) -> dict[str, list[Any]]:
    scored = [
        (prompt, session)
        for group, finished in zip(prompts, sessions, strict=True)
        for prompt, session in zip(group, finished, strict=True)
        if session.result.reward is not None
    ]
    samples = [samples_of(prompt, session)[-1] for prompt, session in scored]
    return {
        "rewards": [session.reward for _, session in scored],
        "truncated": [session.was_cut for _, session in scored],
        "samples": samples,
    }


def _eval_prompts(data_set: Any, sample_type: Any) -> list[list[Any]]:
    rows = enumerate(_rows(data_set.path))
    prompts = [
        sample_type(index=number, prompt=row[data_set.input_key], metadata=row.get(data_set.metadata_key) or {})
        for number, row in rows
    ]
    return [[prompt] * data_set.n_samples_per_eval_prompt for prompt in prompts]


def _rows(path: str) -> list[dict[str, Any]]:
    with Path(path).open("rb") as lines:
        return [orjson.loads(line) for line in lines if line.strip()]
