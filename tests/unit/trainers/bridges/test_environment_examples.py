"""The examples for NeMo Gym and prime-rl, without their packages. With them: `test_nemo_gym_real.py` and
`test_verifiers_real.py`."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym.answers import task_of

EXAMPLES = Path(__file__).parents[4] / "examples/trainers"
GYM = EXAMPLES / "nemo_gym"
AGENT = GYM / "responses_api_agents/polar_agent"
PRIME = EXAMPLES / "prime_rl"


def gym_rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (AGENT / "data/example.jsonl").read_text().splitlines()]


def test_the_rows_for_gym_are_tasks_that_differ() -> None:
    tasks = [task_of(BridgeConfig(task={"harness": "pi"}), row) for row in gym_rows()]
    assert [task.instruction[:5] for task in tasks] == ["Write", "Copy "]
    assert tasks[1].files == {"x.txt": "kept\n"} and all(task.evaluator for task in tasks)


def test_a_folder_of_an_agent_has_what_gym_installs() -> None:
    assert (AGENT / "requirements.txt").read_text().split() == ["polar-rollout"]
    project = tomllib.loads((PRIME / "pyproject.toml").read_text())["project"]
    assert project["name"] == "polar-words" and "polar-rollout" in project["dependencies"]


def test_the_page_names_the_files() -> None:
    page = (EXAMPLES.parents[1] / "docs/trainers.md").read_text()
    named = re.findall(r"\.\./(examples/trainers/[^)\s]+)\)", page)
    assert {name.split("/")[2] for name in named} >= {"nemo_gym", "prime_rl"}
    assert [name for name in named if not (EXAMPLES.parents[1] / name).exists()] == []
