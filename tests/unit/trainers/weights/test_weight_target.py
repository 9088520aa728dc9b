"""Which engines take weights, and that asking costs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polar.errors import ConfigError
from polar.trainers.weights import WeightOptions, weight_target
from polar.types import Spec


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    return tmp_path


@pytest.mark.parametrize("engine", ["vllm", "torch", "sglang"])
async def test_an_engine_that_takes_weights(engine: str, model: Path) -> None:
    target = weight_target(Spec(name=engine, options={"url": "http://127.0.0.1:1"}), model)
    await target.close()


@pytest.mark.parametrize("engine", ["embedded", "llamacpp", "my.module:Engine"])
def test_one_that_does_not(engine: str, model: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{engine}.*these do: pool, sglang, torch, vllm"):
        weight_target(Spec(name=engine), model)


def test_only_vllm_takes_them_by_ipc(model: Path) -> None:
    with pytest.raises(ConfigError, match="'sglang' does not take new weights by ipc; these do: vllm"):
        weight_target(Spec(name="sglang"), model, WeightOptions(transfer="ipc"))


def test_a_sampler_of_each_node_takes_none(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"start one sampler.*`url`"):
        weight_target(Spec(name="torch", options={"model": "/a/folder"}), model)


def test_the_options_of_the_torch_engine_that_are_not_addresses_do_not_matter(model: Path) -> None:
    options = {"url": "http://127.0.0.1:1", "model": "/a/folder", "threads": 1}
    weight_target(Spec(name="torch", options=options), model)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the folder of a model"):
        weight_target(Spec(name="vllm", options={"url": "http://127.0.0.1:1"}), tmp_path)


def test_wrong_options_of_the_engine_are_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="url"):
        weight_target(Spec(name="vllm", options={"url": "nowhere"}), model)


def test_torch_is_imported_only_where_tensors_are_written(model: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom polar.trainers.weights import weight_target\n"
        "from polar.types import Spec\n"
        f"weight_target(Spec(name='vllm', options={{'url': 'http://127.0.0.1:1'}}), Path({str(model)!r}))\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
