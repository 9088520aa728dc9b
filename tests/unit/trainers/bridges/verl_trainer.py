"""verl's own trainer without its models: real are its configuration, agent loop worker, replay buffer, validation,
advantages and metrics. TransferQueue is doubled, because it needs a Ray cluster."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import hydra
import numpy
import torch
import transfer_queue
import verl.trainer.config
from omegaconf import OmegaConf
from pytest import MonkeyPatch
from stored_groups import StoredClient
from tensordict import NonTensorStack, TensorDict
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.trainers.bridges.verl import AgentLoop

CONFIGS = str(Path(verl.trainer.config.__path__[0]))
USED = (
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.calculate_log_probs=true",
    "data.train_batch_size=1",
    "algorithm.rollout_correction.bypass_mode=true",
)
"""What docs/trainers.md sets, and the captured logprobs in place of a model's; the rest are verl's defaults."""


class StoredLoop(AgentLoop):
    """The bridge, on sessions that have ended: the n-th session of a prompt is the n-th here."""

    sessions: ClassVar[list[FinishedSession]] = []

    async def run(self, sampling_params: Any, **row: Any) -> list[Any]:
        session = self.sessions[row["session_id"]]
        self._connect = lambda: StoredClient(Group(session.result.task_id, (session,)))
        return await super().run(sampling_params, **row)


class Queue:
    """TransferQueue's key-value interface, in one process."""

    def __init__(self) -> None:
        self._tags: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self._rows: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))

    def install(self, patch: MonkeyPatch) -> None:
        for name in ("kv_batch_put", "kv_batch_get", "kv_list", "kv_clear", "async_kv_put", "async_kv_batch_put"):
            patch.setattr(transfer_queue, name, getattr(self, name))

    def kv_batch_put(
        self, keys: list[str], partition_id: str, fields: Any = None, tags: Sequence[dict[str, Any]] | None = None
    ) -> Any:
        for number, key in enumerate(keys):
            self._tags[partition_id].setdefault(key, {}).update(tags[number] if tags else {})
            for name in () if fields is None else fields.keys():
                self._rows[partition_id][key][name] = item_of(fields[name], number)
        kept = [self._tags[partition_id][key] for key in keys]
        return transfer_queue.KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=kept)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        if not keys:
            raise ValueError("Received an empty list of keys.")
        rows = [self._rows[partition_id][key] for key in keys]
        known = [name for name in select_fields if name in rows[0]]
        return TensorDict({name: column_of([row[name] for row in rows]) for name in known}, batch_size=len(rows))

    def kv_list(self) -> Any:
        return {partition: dict(tags) for partition, tags in self._tags.items()}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self._tags[partition_id].pop(key, None)
            self._rows[partition_id].pop(key, None)

    async def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.kv_batch_put([key], partition_id, tags=[tag])

    async def async_kv_batch_put(self, **batch: Any) -> None:
        self.kv_batch_put(**batch)


def item_of(column: Any, number: int) -> Any:
    item = column.unbind()[number] if isinstance(column, torch.Tensor) else column[number]
    return getattr(item, "data", item) if not isinstance(item, torch.Tensor) else item


def column_of(values: list[Any]) -> Any:
    if isinstance(values[0], torch.Tensor) and values[0].dim():
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return NonTensorStack(*values)


class Manager:
    """verl's agent loops, in this process and to their end."""

    def __init__(self, config: Any) -> None:
        worker: Any = object.__new__(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
        worker.config, worker.rollout_config = config, config.actor_rollout_ref.rollout
        worker.background_tasks, worker.tools = set(), []
        worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
        for name in ("llm_client", "tokenizer", "processor", "hf_model_type", "dataset_cls"):
            setattr(worker, name, None)
        self._worker = worker

    def generate_sequences(self, batch: Any) -> None:
        asyncio.run(self._generate(batch))

    async def _generate(self, batch: Any) -> None:
        await self._worker.generate_sequences(batch)
        await asyncio.gather(*self._worker.background_tasks)


def a_config(*settings: str) -> Any:
    with hydra.initialize_config_dir(CONFIGS, version_base=None):
        config = hydra.compose("ppo_trainer", list(settings))
    OmegaConf.resolve(config)
    return config


def a_trainer(sessions: int, *overrides: str) -> Any:
    """`sessions`: of each prompt, in training."""
    config = a_config(*USED, f"actor_rollout_ref.rollout.n={sessions}", *overrides)
    loop = {"_target_": "verl_trainer.StoredLoop", "polar": {"task": {"harness": "pi"}}}
    _agent_loop_registry["polar"] = loop
    trainer: Any = object.__new__(PPOTrainerSync)
    trainer.config, trainer.trainer_mode, trainer.global_steps = config, "sync", 1
    trainer.use_critic, trainer.tokenizer = (
        False,
        SimpleNamespace(pad_token_id=0, decode=lambda ids, **_: str(ids)),
    )
    trainer.agent_loop_manager = Manager(config)
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
    trainer._rollout_moe_lb_metrics_accumulator = None
    trainer.replay_buffer = ReplayBuffer(
        "sync",
        config.trainer.v1,
        config.trainer.v1.sampler.max_off_policy_threshold,
        config.trainer.v1.sampler.max_off_policy_strategy,
        config.trainer.v1.sampler.sampler_kwargs,
        poll_interval=0.0,
        filter_groups_metric=trainer._resolve_filter_groups_metric(),
        refill_fn=lambda count: count,
        train_batch_size=1,
        gen_batch_size=1,
    )
    return trainer


def a_batch() -> dict[str, Any]:
    """One prompt, as verl's data loader gives it."""
    prompt = numpy.empty(1, dtype=object)
    prompt[0] = [{"role": "user", "content": "Do it."}]
    texts = {"agent_name": "polar", "data_source": "tasks", "polar": "{}"}
    return {"raw_prompt": prompt, "index": numpy.array([0], dtype=object)} | {
        name: numpy.array([value], dtype=object) for name, value in texts.items()
    }


def a_step(trainer: Any, batch: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """What verl does in a step besides running models: the advantages of each row by its key, and the metrics."""
    trainer.train_dataloader_it = trainer.train_dataloader = iter([batch or a_batch()])
    trainer._add_batch_to_generate()
    step = trainer.global_steps
    rows, metrics = trainer.replay_buffer.sample(step, "train", 1)
    trainer._compute_old_log_prob(rows, metrics)
    trainer._compute_advantage(rows, metrics)
    trainer._compute_metrics(rows, metrics, {"step": 1.0, "gen": 1.0}, global_steps=step, epoch=0)
    found = transfer_queue.kv_batch_get(rows.keys, "train", ["advantages"])["advantages"].unbind()
    return dict(sorted(zip(rows.keys, (row.tolist() for row in found), strict=True))), metrics


def a_validation(trainer: Any) -> dict[str, Any]:
    trainer.val_dataloader = [a_batch()]
    return trainer._validate()
