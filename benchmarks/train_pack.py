"""A training step of `polar train` on a CPU: a pack of traces with one long prompt, forward and backward.

    python benchmarks/train_pack.py [--prompt 1100] [--reply 80] [--traces 24] [--rounds 3] [--threads 2]

Three ways take turns: attention over the whole pack, in blocks of queries (what the trainer does), and in blocks
computed in bfloat16 (`compute.dtype`). Ids are random. Compare the rows of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from page import origin, table, write_json

from polar.engines.torch.default_model import default_model
from polar.trainers.grpo.model import pack_attention
from polar.trainers.grpo.model.packing import Pack, TrainingSequence, packs
from polar.trainers.grpo.model.policy_model import PolicyModel

IN_BLOCKS = pack_attention.QUERY_TOKENS


def a_pack(options: argparse.Namespace) -> Pack:
    draw = np.random.default_rng(0)
    prompt = draw.integers(1000, 40_000, options.prompt)
    nothing = np.zeros(options.reply, np.float32)
    targets = np.arange(options.prompt, options.prompt + options.reply)
    replies = [draw.integers(1000, 40_000, options.reply) for _ in range(options.traces)]
    traces = [
        TrainingSequence(np.concatenate([prompt, reply]), targets, nothing, nothing, nothing) for reply in replies
    ]
    [pack] = packs(traces, options.prompt + options.reply * options.traces)
    return pack


def seconds(model: PolicyModel, pack: Pack) -> float:
    began = time.perf_counter()
    model.module.zero_grad()
    model.logprobs(pack).sum().backward()
    return time.perf_counter() - began


def measured(options: argparse.Namespace) -> dict[str, list[float]]:
    torch.set_num_threads(options.threads)
    folder, pack = str(asyncio.run(default_model())), a_pack(options)
    exact, halved = PolicyModel(folder, "cpu"), PolicyModel(folder, "cpu", "bfloat16")
    ways = {
        "whole pack, float32": (exact, len(pack.ids)),
        "in blocks, float32": (exact, IN_BLOCKS),
        "in blocks, bfloat16": (halved, IN_BLOCKS),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (model, block) in ways.items():
            pack_attention.QUERY_TOKENS = block
            found[name].append(seconds(model, pack))
    return found


def shown(found: dict[str, list[float]]) -> str:
    whole = median(next(iter(found.values())))
    rows: list[Sequence[str]] = [
        [name, f"{median(times):.1f}", f"{whole / median(times):.1f} ×"] for name, times in found.items()
    ]
    return table(["", "seconds", "faster"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=1100, help="ids that all traces begin with")
    parser.add_argument("--reply", type=int, default=80, help="ids of each trace behind them")
    parser.add_argument("--traces", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    command = (
        f"python benchmarks/train_pack.py --prompt {options.prompt} --reply {options.reply} "
        f"--traces {options.traces} --threads {options.threads}"
    )
    found = measured(options)
    print(f"{shown(found)}\n\n{origin(command)}")
    write_json(options.json, command, found)


if __name__ == "__main__":
    main()
