"""The benchmark scripts of the torch engine run to their end. What they measure is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.check
ROOT = Path(__file__).parents[4]


def printed_by(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_engine_is_measured_against_transformers(tiny_model: Path) -> None:
    sizes = ("--at-once", "2", "--prompt", "40", "--tokens", "4")
    printed = printed_by("torch_engine.py", *sizes, "--model", str(tiny_model))
    assert "| sequences | turn | generate | continuous batching |" in printed
    assert "| 2 | second |" in printed


def test_continuous_batching_is_exact_until_the_weights_change() -> None:
    printed = printed_by("continuous_batching.py")
    rows = dict(line.strip("| ").split(" | ") for line in printed.splitlines() if line.count(" | ") == 1)
    assert float(rows["new prompts"]) < 1e-4
    assert float(rows["after new weights, prompts seen before"]) > 0.01
    assert rows["a seed gives the same tokens in other company"] == "no"
