"""docs/training.md shows the defaults, all of them; the configs of examples/learning are valid."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from polar.config import load
from polar.trainers.grpo.config import TrainConfig, load_train_config

ROOT = Path(__file__).parents[3]
LEARNING = ROOT / "examples" / "learning"


def test_the_page_shows_the_defaults() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    [block] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    shown = tomllib.loads(block)
    defaults = TrainConfig.model_validate({"tasks": {"train": "tasks.toml"}})
    assert TrainConfig.model_validate(shown) == defaults
    named = {f"{table}.{name}" for table, values in shown.items() if isinstance(values, dict) for name in values}
    known = defaults.model_dump(exclude_none=True)
    assert named == {
        f"{table}.{name}" for table, values in known.items() if isinstance(values, dict) for name in values
    }


@pytest.mark.parametrize("name", ["laptop", "one_step", "gpu", "joined"])
def test_training_configs_are_valid(name: str) -> None:
    assert load_train_config(LEARNING / f"{name}.toml").tasks.train.startswith("families:")


@pytest.mark.parametrize("name", ["torch", "vllm"])
def test_service_configs_are_valid(name: str) -> None:
    assert load(LEARNING / f"{name}.toml").engine.name == name
