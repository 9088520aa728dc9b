"""Which models the trainer takes, and what its checkpoints are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import save_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from polar.errors import ConfigError
from polar.trainers.grpo.model import policy_model
from polar.trainers.grpo.model.packing import Pack, TrainingSequence, packs
from polar.trainers.grpo.model.policy_model import PolicyModel, check_policy, compute_device, local_folder

pytestmark = pytest.mark.check
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}


def saved(folder: Path, kind: str, **more: Any) -> Path:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **more)).save_pretrained(folder)
    return folder


def a_pack(*sequences: list[int]) -> Pack:
    """All tokens but the first of each are targets."""
    made: list[TrainingSequence] = []
    for ids in sequences:
        nothing = np.zeros(len(ids) - 1, np.float32)
        made.append(TrainingSequence(np.asarray(ids), np.arange(1, len(ids)), nothing, nothing, nothing))
    [pack] = packs(made, 1000)
    return pack


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}, "conv"),
        ("qwen3_5_text", LINEAR, "linear_attention"),
    ],
)
def test_a_model_that_mixes_traces_up_is_refused(
    kind: str, more: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = str(saved(tmp_path, kind, **more))
    for refused in (lambda: check_policy(folder, 64), lambda: PolicyModel(folder, "cpu")):
        with pytest.raises(ConfigError, match=f"wrongly, because it has {named}; models with full attention"):
            refused()


def test_attention_logits_that_are_capped_are_refused() -> None:
    config = AutoConfig.for_model("gemma2", layer_types=["full_attention"] * 26)
    with pytest.raises(ConfigError, match="attn_logit_softcapping"):
        policy_model.check_attention(config)


def test_a_sliding_window_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = str(saved(tmp_path, "mistral", sliding_window=4))
    check_policy(folder, 4)
    with pytest.raises(ConfigError, match=r"see 4 tokens.*set compute\.max_tokens to 4 at most"):
        check_policy(folder, 5)
    model = PolicyModel(folder, "cpu")
    with pytest.raises(ConfigError, match="see 4 tokens"):
        model.logprobs(a_pack([1, 2, 3, 4, 5]))
    short = [1, 2, 3, 4], [1, 5, 6]
    with torch.no_grad():
        together = model.logprobs(a_pack(*short)).tolist()
        logits = [model.module(torch.tensor([ids])).logits[0].log_softmax(-1) for ids in short]
    alone = [
        float(rows[at, ids[at + 1]]) for ids, rows in zip(short, logits, strict=True) for at in range(len(ids) - 1)
    ]
    assert together == pytest.approx(alone, abs=1e-5)


def test_a_window_that_no_layer_uses_does_not_matter(tmp_path: Path) -> None:
    check_policy(str(saved(tmp_path, "qwen2", use_sliding_window=False, sliding_window=4)), 200)


def test_a_checkpoint_has_all_that_the_model_is_served_with(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    beside = ("chat_template.jinja", "merges.txt", "vocab.json", "tokenizer.json", "spiece.model")
    for name in beside:
        (folder / name).write_text(name)
    (folder / "optimizer.pt").write_text("no part of it")
    PolicyModel(str(folder), "cpu").save(tmp_path / "saved")
    assert {name: (tmp_path / "saved" / name).read_text() for name in beside} == {name: name for name in beside}
    assert not (tmp_path / "saved" / "optimizer.pt").exists()
    assert check_policy(str(tmp_path / "saved"), 64) is None


def test_the_hub_is_asked_for_chat_template_and_vocabulary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def snapshot_download(_: str, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(policy_model, "snapshot_download", snapshot_download)
    assert local_folder("an/id") == tmp_path
    assert {"*.jinja", "*.txt", "*.model", "*.json", "*.safetensors"} <= set(asked)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_missing_is_found_without_a_model() -> None:
    with pytest.raises(ConfigError, match=r"compute\.device is cuda, but torch finds no GPU"):
        compute_device("cuda")
