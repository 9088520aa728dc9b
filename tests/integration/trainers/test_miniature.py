"""The miniature: `polar train` on a processor, from the command to the reward that rises.

A random model of a million weights, the real sampler, server, node and gateway. The reward is the share of sampled
tokens from one half of the vocabulary: about 0.5 at first, and learnable in a few steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from polar.trainers.grpo.records import read_points
from polar.types import TrainingPoint

pytestmark = pytest.mark.check

HERE = Path(__file__).parent
VOCABULARY = 49_152
TRAIN = """
model = "model"
output = "out"

[tasks]
train = "toy_world:task"
evaluate = "toy_world:task"
evaluate_tasks = 8
groups = 2
samples = 8

[optimizer]
learning_rate = 0.01

[schedule]
steps = {steps}
evaluate_every = 1000
"""
SERVICE = """
[engine]
name = "torch"
options = { context_tokens = 512, parallel = 16, threads = 1 }

[pools]
init = 4
running = 16

[server]
heartbeat_s = 0.2
lease_beats = 300
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # a direction that tells the halves apart; to go there is what is learned
        model.lm_head.weight[:, 0] = torch.tensor([0.3, -0.3]).repeat_interleave(VOCABULARY // 2)
    model.save_pretrained(tmp_path / "model")
    for name in ("toy_world.py", "ask_once.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "polar.toml").write_text(SERVICE)
    return tmp_path


def polar_train(folder: Path, steps: int, *options: str) -> str:
    (folder / "train.toml").write_text(TRAIN.format(steps=steps))
    command = (sys.executable, "-c", "from polar.cli.app import main; main()", "train", "train.toml", *options)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "POLAR_CONFIG_DIR": str(folder / "secrets")}
    done = subprocess.run(command, cwd=folder, env=variables, text=True, capture_output=True)
    logs = "\n".join(path.read_text()[-2000:] for path in (folder / "out" / "logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}\n{logs}"
    return done.stdout


def rewards(points: list[TrainingPoint]) -> list[float]:
    return [point.metrics["reward"] for point in points if point.phase == "train"]


def test_the_reward_rises_and_a_resumed_run_goes_on(folder: Path) -> None:
    printed = polar_train(folder, 6)
    first = rewards(read_points(folder / "out"))
    assert len(first) == 6
    assert "step    6  reward" in printed and "held out: pass@1" in printed
    polar_train(folder, 12, "--resume")
    points = read_points(folder / "out")
    assert sum(rewards(points)[-3:]) / 3 > sum(first[:2]) / 2 + 0.2, rewards(points)
    evaluated = [point for point in points if point.phase == "eval"]
    assert [point.step for point in evaluated] == [0, 6, 12]
    assert evaluated[-1].metrics["reward"] > evaluated[0].metrics["reward"] + 0.2
    assert points[1].metrics["gap"] < 1e-4, "captured and recomputed logprobs, before the first update"
    assert (folder / "out" / "curves.png").stat().st_size > 10_000
