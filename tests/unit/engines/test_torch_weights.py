"""Weights in place, with and without a head of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from polar.engines.torch.weights import WeightsRefused, load_in_place
from tiny_llama import recomputed, saved, tiny_llama

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]
PROMPT, REPLY = [3, 1, 4, 1, 5], [9, 2, 6]


def load(model: Any, folder: Path) -> None:
    with torch.no_grad():
        load_in_place(model, folder)


@pytest.mark.parametrize("runs_tied", [True, False])
@pytest.mark.parametrize("comes_tied", [True, False])
def test_the_model_computes_as_the_folder_does(tmp_path: Path, runs_tied: bool, comes_tied: bool) -> None:
    model = tiny_llama(seed=0, tied=runs_tied)
    load(model, saved(tmp_path, seed=1, tied=comes_tied))
    expected = recomputed(tiny_llama(seed=1, tied=comes_tied), PROMPT, REPLY)
    assert recomputed(model, PROMPT, REPLY) == pytest.approx(expected, abs=1e-5)


def test_a_head_that_was_separated_follows_the_embedding_again(tmp_path: Path) -> None:
    model = tiny_llama(seed=0, tied=True)
    load(model, saved(tmp_path / "untied", seed=1, tied=False))
    load(model, saved(tmp_path / "tied", seed=2, tied=True))
    expected = recomputed(tiny_llama(seed=2, tied=True), PROMPT, REPLY)
    assert recomputed(model, PROMPT, REPLY) == pytest.approx(expected, abs=1e-5)


def test_a_folder_in_another_precision_is_converted(tmp_path: Path) -> None:
    model, source = tiny_llama(seed=0), tiny_llama(seed=1)
    source.to(torch.bfloat16).save_pretrained(tmp_path)
    load(model, tmp_path)
    rounded = {name: value.float() for name, value in source.state_dict().items()}
    assert all(torch.equal(value, rounded[name]) for name, value in model.state_dict().items())


def test_weights_in_several_files_are_read_together(tmp_path: Path) -> None:
    tiny_llama(seed=1).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = tiny_llama(seed=0)
    load(model, tmp_path)
    assert recomputed(model, PROMPT, REPLY) == pytest.approx(recomputed(tiny_llama(1), PROMPT, REPLY), abs=1e-5)


def test_weights_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    model = tiny_llama(seed=0)
    before = recomputed(model, PROMPT, REPLY)
    file = saved(tmp_path, seed=1) / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    for changed, message in (
        ({key: value for key, value in tensors.items() if key != name}, f"lacks {name}"),
        ({**tensors, "model.extra": torch.zeros(1)}, "has model.extra"),
        ({**tensors, name: torch.zeros(2, 2)}, f"{name} .* shape"),
        ({key: value for key, value in tensors.items() if key != "lm_head.weight"}, "lacks lm_head"),
    ):
        save_file(changed, file)
        with pytest.raises(WeightsRefused, match=message):
            load(model, tmp_path)
    file.write_bytes(b"not weights")
    with pytest.raises(WeightsRefused, match="cannot read"):
        load(model, tmp_path)
    assert recomputed(model, PROMPT, REPLY) == before
