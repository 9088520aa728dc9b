"""What docs/judge.md and examples/judge.toml show can be submitted as it stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from polar import registry
from polar.config import parse
from polar.data.tasks import read_tasks
from polar.types import TaskRequest

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/judge.md").read_text()
BLOCKS: list[dict[str, Any]] = [
    tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
]


def evaluators() -> list[dict[str, Any]]:
    """`[tasks.evaluator]` alone is a table; below `[[tasks]]` it is part of a task."""
    tasks = [block["tasks"] for block in BLOCKS if "tasks" in block]
    return [(each[0] if isinstance(each, list) else each)["evaluator"] for each in tasks]


@pytest.mark.parametrize("evaluator", evaluators(), ids=lambda each: each["name"])
def test_the_evaluators_of_the_page(evaluator: dict[str, Any]) -> None:
    task = TaskRequest.model_validate({"instruction": "x", "evaluator": evaluator})
    assert registry.plugin_problems(task) == []


def test_the_page_shows_both_evaluators_and_the_permits() -> None:
    assert [each["name"] for each in evaluators()] == ["judge", "combine"]
    (permits,) = (block for block in BLOCKS if "permits" in block)
    endpoints = parse(permits, "docs/judge.md").permits.endpoints
    assert endpoints is not None and endpoints[1].api_key_env == "JUDGE_KEY"


@pytest.mark.parametrize("name", ["judge", "combine"])
def test_every_option_stands_on_the_page(name: str) -> None:
    fields = registry.find("evaluator", name).Options.model_fields
    assert [field for field in fields if f"`{field}`" not in PAGE and field != "parts"] == []


def test_the_example() -> None:
    (task,) = read_tasks(ROOT / "examples/judge.toml")
    assert task.evaluator.name == "combine"
