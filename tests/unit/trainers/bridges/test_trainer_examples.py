"""examples/trainers: what verl and SkyRL read, as far as it goes without them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from stored_groups import StoredClient, a_group
from test_verl_bridge import ROW, SAMPLING
from trainer_types import provide, provide_verl

from polar.trainers.bridges.skyrl import Generator
from polar.trainers.bridges.verl import AgentLoop

EXAMPLES = Path(__file__).parents[4] / "examples/trainers"


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rows(tmp_path: Path) -> list[dict[str, Any]]:
    subprocess.run([sys.executable, EXAMPLES / "rows.py", tmp_path], check=True)
    train, test = (pq.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("train", "test"))
    assert (len(train), len(test)) == (28, 4)
    return [*test, *train]


async def test_verls_loop_makes_a_task_of_each_row(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    provide_verl(monkeypatch)
    (entry,) = yaml.safe_load((EXAMPLES / "verl/agent_loops.yaml").read_text())
    assert entry.pop("_target_") == f"{AgentLoop.__module__}.{AgentLoop.__name__}"
    assert {row["agent_name"] for row in rows} == {entry.pop("name")}
    for row in rows[:2]:
        client = StoredClient(a_group("a", 1.0))
        loop = AgentLoop(**entry, connect=lambda client=client: client)
        assert await loop.run(SAMPLING, **{**ROW, **row, "raw_prompt": row["prompt"]})
        (task,) = client.submitted
        word, file = task.instruction.removesuffix(".").split()[3::4]
        assert task.evaluator.options == {"command": f"cat {file}", "expect_pattern": f"^{word}$"}
        assert task.runtime.name == "bubblewrap"


async def test_skyrls_entry_point_has_polars_generator(
    rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(monkeypatch, "ray", remote=lambda **_: lambda function: function)
    provide(monkeypatch, "skyrl.train.config", SkyRLTrainConfig=object)
    provide(monkeypatch, "skyrl.train.entrypoints.main_base", BasePPOExp=object)
    provide(monkeypatch, "skyrl.train.utils", validate_cfg=None)
    provide(monkeypatch, "skyrl.train.utils.utils", initialize_ray=None)
    module = loaded(EXAMPLES / "skyrl/main.py")
    generator = module.PolarExp().get_generator(None, None, None)
    assert isinstance(generator, Generator)
    client = StoredClient(a_group("a", 1.0, 0.0))
    extras = [{name: value for name, value in rows[0].items() if name != "prompt"}] * 2
    ids = [SimpleNamespace(instance_id="0", repetition_id=number) for number in range(2)]
    batch = {"prompts": [rows[0]["prompt"]] * 2, "env_extras": extras, "trajectory_ids": ids}
    await Generator(module.CONFIG, lambda: client).generate(batch)
    assert client.submitted[0].evaluator.name == "test_on_output"
