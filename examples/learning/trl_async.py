"""TRL's `AsyncGRPOTrainer` on tasks of families.py, through an unmodified harness: trainer and vLLM on one GPU.

    polar up --config examples/learning/vllm.toml --workers 2 &
    python examples/learning/trl_async.py MODEL --out FOLDER [--steps 20] [--transfer ipc]

MODEL is the checkpoint that vLLM serves, started as docs/weights.md says. FOLDER gets `log.json`: what TRL logs of
each step, and the proof of each weight update.

TRL fetches its attention kernel from the Hugging Face hub. `--plain-attention` computes the same with PyTorch.
"""

# pyright: reportUnknownMemberType=false, reportArgumentType=false
from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import families
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from torch.nn.functional import scaled_dot_product_attention
from trl.experimental.async_grpo import packing
from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
from trl.experimental.async_grpo.async_grpo_trainer import AsyncGRPOTrainer

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.trl import check_temperature
from polar.trainers.bridges.trl_async import RolloutWorker
from polar.trainers.bridges.trl_weights import EngineTransfer
from polar.trainers.weights import WeightOptions
from polar.types import Spec, TaskRequest

SAMPLES = 16
BATCH = 128
"""Traces of one step; almost every session has one."""
QUEUED = 2 * BATCH
"""Rows that wait for the trainer. TRL drops those that are older than `max_staleness` updates."""
GROUPS_AT_ONCE = 12
UNREAD = Dataset(InMemoryTable.from_pydict({"prompt": [""]}), fingerprint="unread")
"""TRL wants a data set; the worker has tasks of its own."""
KERNEL = "_flash_attn"
"""Where TRL 1.16 loads its kernel."""


def tasks(config: BridgeConfig) -> Iterator[TaskRequest]:
    """Endless: every number is another instance."""
    for index in count():
        fields = families.training_one_step(index)
        yield config.task_for(fields["instruction"], {"polar": fields}, samples=SAMPLES)


def plain_attention(
    query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, *_: int, softmax_scale: float, **__: Any
) -> Any:
    """What TRL's kernel computes: each segment attends to its own keys, aligned at the end."""
    groups = query.shape[1] // key.shape[1]
    starts = list(zip(starts_q.tolist(), starts_k.tolist(), strict=True))
    parts: list[Any] = []
    for (q0, k0), (q1, k1) in pairwise(starts):
        q = query[q0:q1].transpose(0, 1)
        k, v = (x[k0:k1].transpose(0, 1).repeat_interleave(groups, 0) for x in (key, value))
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool, device=q.device).tril(k1 - k0 - (q1 - q0))
        parts.append(scaled_dot_product_attention(q, k, v, seen, scale=softmax_scale).transpose(0, 1))
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--transfer", choices=["disk", "ipc"], default="disk")
    parser.add_argument("--engine-url", default="http://127.0.0.1:8000")
    parser.add_argument("--plain-attention", action="store_true")
    arguments = parser.parse_args()
    if arguments.plain_attention:
        setattr(packing, KERNEL, lambda: SimpleNamespace(flash_attn_varlen_func=plain_attention))
    config = BridgeConfig()
    worker = RolloutWorker(config, tasks(config), groups_at_once=GROUPS_AT_ONCE, queue_size=QUEUED)
    transfer = EngineTransfer(
        worker,
        config,
        Spec(name="vllm", options={"url": arguments.engine_url}),
        arguments.model,
        WeightOptions(transfer=arguments.transfer, dtype="bfloat16"),
    )
    trainer = AsyncGRPOTrainer(
        model=str(arguments.model),
        args=AsyncGRPOConfig(
            output_dir=str(arguments.out),
            max_steps=arguments.steps,
            learning_rate=3e-5,
            warmup_steps=2,
            num_generations=SAMPLES,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=1,
            token_budget=0,  # count sessions, not tokens
            weight_sync_steps=1,
            max_staleness=4,
            vllm_server_base_url=arguments.engine_url,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            bf16=True,
        ),
        train_dataset=UNREAD,
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    check_temperature(trainer, config)
    transfer.prove(trainer.model)
    trainer.train()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = {"steps": trainer.state.log_history, "updates": [asdict(proof) for proof in transfer.proofs]}
    (arguments.out / "log.json").write_text(json.dumps(log, indent=1) + "\n")


if __name__ == "__main__":
    main()
