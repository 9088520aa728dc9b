"""The examples of docs/trainers.md: they compile, and what they import of Polar exists."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

from polar.trainers.bridges import slime, slime_async
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.verl import AgentLoop

PAGE = (Path(__file__).parents[4] / "docs/trainers.md").read_text()
NAMED = (slime.generate_rollout, slime.post_process_rewards, slime_async.generate_rollout, AgentLoop)
"""What other trainers load by its path."""


def blocks() -> list[ast.Module]:
    return [ast.parse(block) for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def test_what_the_examples_import_exists() -> None:
    imported = [
        (node.module, alias.name)
        for block in blocks()
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("polar.")
        for alias in node.names
    ]
    assert len(imported) > 6
    assert [f"{m}.{n}" for m, n in imported if not hasattr(import_module(m or ""), n)] == []


def test_paths_in_configurations_exist() -> None:
    named = set(re.findall(r"polar\.trainers\.bridges\.\w+\.\w+", PAGE))
    assert {f"{each.__module__}.{each.__name__}" for each in NAMED} <= named
    missing = [
        path for path in named if not hasattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
    ]
    assert missing == []


def test_every_field_of_the_configuration_has_a_row() -> None:
    rows = "\n".join(re.findall(r"^\| `.*$", PAGE, re.MULTILINE))
    assert [name for name in BridgeConfig.model_fields if f"`{name}`" not in rows] == []
