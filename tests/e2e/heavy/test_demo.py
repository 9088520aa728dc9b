"""The demo as a newcomer runs it, held to what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest


@pytest.mark.timeout(900)
def test_the_demo_is_lively_and_exact(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "demo", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    rewards: defaultdict[str, set[float]] = defaultdict(set)
    for result in run["results"]:
        rewards[result["task_id"]].add(result["score"]["reward"])
    assert len(run["results"]) == 24
    assert sum(len(group) > 1 for group in rewards.values()) >= 2, "some groups have something to learn from"
    with_tools = [result for result in run["results"] if result["statistics"]["calls"] >= 2]
    assert len(with_tools) >= 12, "at least half of the sessions go on after a tool"
    assert run["merge_rate"] == 1.0
    assert run["sampled_tokens"] == run["trainable_tokens"] + run["dropped_tokens"]
