"""Supervised fine-tuning on the data of `polar generate` or `polar export --to tokens`, small enough to read.

    python examples/sft/train.py DATA --out MODEL-SFT [--model MODEL] [--epochs 2]

DATA is a folder with `.jsonl` files whose rows have `input_ids` and `labels` (-100: context). The loss of a batch
is the mean over its labelled tokens; what rows share at their beginning, such as the harness's first prompt, is
computed once. OUT is a checkpoint: `polar train --model OUT` goes on with it.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from polar.engines.torch.default_model import default_model
from polar.trainers.grpo.model.packing import TrainingSequence, packs
from polar.trainers.grpo.model.policy_model import PolicyModel

CONTEXT = -100
"""The label of a token that is not trained on."""


def sequences(folder: Path) -> list[TrainingSequence]:
    """Those of all rows beneath a folder, in the order of their files."""
    lines = (line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines())
    found = [_sequence(row) for row in map(json.loads, lines) if "input_ids" in row and "labels" in row]
    if not found:
        raise SystemExit(f"{folder} has no .jsonl rows with input_ids and labels: `polar generate --to tokens`")
    return found


def _sequence(row: dict[str, list[int]]) -> TrainingSequence:
    targets = np.flatnonzero(np.asarray(row["labels"]) != CONTEXT)
    unused = np.zeros(len(targets), np.float32)
    return TrainingSequence(np.asarray(row["input_ids"], np.int64), targets, unused, unused, unused)


def batches(rows: list[TrainingSequence], size: int, epochs: int, seed: int) -> Iterator[list[TrainingSequence]]:
    """Every row once in each epoch, in an order of the epoch."""
    for epoch in range(epochs):
        order = random.Random(f"{seed}-{epoch}").sample(rows, len(rows))
        yield from (order[start : start + size] for start in range(0, len(order), size))


def update(
    model: PolicyModel, optimizer: torch.optim.Optimizer, batch: Sequence[TrainingSequence], pack_tokens: int
) -> float:
    """One optimizer step; returns the loss before it."""
    count = sum(len(row.targets) for row in batch)
    loss = 0.0
    optimizer.zero_grad(set_to_none=True)
    for pack in packs(batch, pack_tokens):
        part = -model.logprobs(pack).sum() / count
        part.backward()
        loss += float(part.detach())
    torch.nn.utils.clip_grad_norm_(model.module.parameters(), 1.0)
    optimizer.step()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="", help="a folder of safetensors; default: SmolLM2-135M")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16, help="rows of an optimizer step")
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--warmup", type=int, default=3, help="optimizer steps to the full learning rate")
    parser.add_argument("--pack-tokens", type=int, default=8192, help="tokens of one forward pass")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rows = sequences(chosen.data)
    torch.manual_seed(chosen.seed)
    model = PolicyModel(chosen.model or str(asyncio.run(default_model())))
    optimizer = torch.optim.AdamW(model.module.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    labelled = sum(len(row.targets) for row in rows)
    print(f"{len(rows)} rows, {labelled} tokens to learn of {sum(len(row.ids) for row in rows)}", flush=True)
    for step, batch in enumerate(batches(rows, chosen.batch, chosen.epochs, chosen.seed)):
        for group in optimizer.param_groups:
            group["lr"] = chosen.learning_rate * min(1.0, (step + 1) / chosen.warmup)
        print(f"step {step}: loss {update(model, optimizer, batch, chosen.pack_tokens):.4f}", flush=True)
    model.save(chosen.out)
    print(f"saved to {chosen.out}")


if __name__ == "__main__":
    main()
