"""Which models the sampler runs, and that rows compute what transformers computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from running_batch import RunningBatch
from transformers import AutoConfig, AutoModelForCausalLM

from polar.engines.torch.attention import KeyValueRows, row_attention
from polar.engines.torch.model import check_layers, chosen_device
from polar.errors import ConfigError
from tiny_llama import recomputed

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]
SIZES: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def made(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more})).eval()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"num_key_value_heads": 4}),
        ("llama", {"num_key_value_heads": 1}),
        ("qwen2", {"num_key_value_heads": 2}),
        ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
        ("mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    ],
)
@pytest.mark.parametrize(
    "prompts",
    [[[5, 6, 7], [*range(10, 90)], [*range(20, 40)]], [[*range(10, 90), n] for n in (5, 6, 7)]],
    ids=["apart", "common beginning"],
)
def test_families_with_full_attention_are_exact(kind: str, more: dict[str, Any], prompts: list[list[int]]) -> None:
    with RunningBatch(made(kind, **more)) as running:
        sequences = [running.submit(ids, seed=n) for n, ids in enumerate(prompts)]
        replies = [running.reply(sequence) for sequence in sequences]
    model = made(kind, **more)
    for ids, reply in zip(prompts, replies, strict=True):
        assert reply.logprobs == pytest.approx(recomputed(model, ids, reply.ids), abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        ("mistral", {"sliding_window": 64}, "sliding_window"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding"),
        ("gemma2", {}, "sliding_attention"),
    ],
)
def test_models_with_other_layers_are_refused(kind: str, more: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_layers(AutoConfig.for_model(kind, **{**SIZES, **more}))


def test_attention_that_would_be_wrong_is_not_computed() -> None:
    query = torch.zeros(1, 2, 1, 4)
    with pytest.raises(NotImplementedError, match="sliding_window"):
        row_attention(None, query, query, query, torch.ones(1, 1, 1, 1, dtype=torch.bool), sliding_window=9)


def test_cleared_rows_hold_nothing_of_a_model_that_diverged() -> None:
    config = AutoConfig.for_model("llama", **SIZES, num_key_value_heads=2)
    rows = KeyValueRows(config, 2, 16, torch.zeros(1))
    rows.point_at_row(1, 0, 3)
    broken = torch.full((1, 2, 3, 8), torch.nan)
    rows.update(broken, broken, 0)
    assert rows.take(1, 3).isnan().any()
    rows.clear()
    assert not rows.take(1, 16).isnan().any()
    assert rows.token_bytes == 2 * 2 * 2 * 8 * 4


def test_scoring_takes_longer_texts_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polar.engines.torch.model.SCORED_TOKENS", 7)
    ids = list(range(1, 61))
    with RunningBatch(made("llama")) as running:
        scored = running.batch.score(ids).result()
    assert scored == pytest.approx(recomputed(made("llama"), ids[:1], ids[1:]), abs=1e-4)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device("auto") == chosen_device("cpu") == "cpu"
    with pytest.raises(ConfigError, match="finds no GPU"):
        chosen_device("cuda:1")
