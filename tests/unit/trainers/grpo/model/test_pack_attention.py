"""Attention in blocks is that over the whole pack: what is left out was hidden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model import VOCABULARY, a_credited, save_tiny_model

from polar.trainers.grpo.model import pack_attention
from polar.trainers.grpo.model.pack_attention import query_blocks
from polar.trainers.grpo.model.packing import Pack, packs, training_sequence
from polar.trainers.grpo.model.policy_model import PolicyModel

pytestmark = pytest.mark.check


@pytest.fixture
def model(tmp_path: Path) -> PolicyModel:
    torch.set_num_threads(1)
    return PolicyModel(str(save_tiny_model(tmp_path)), "cpu")


def long_prompt_and_short_replies() -> Pack:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, VOCABULARY, 40).tolist()
    replies = [draw.integers(0, VOCABULARY, 12).tolist() for _ in range(8)]
    [pack] = packs([training_sequence(a_credited(prompt, reply), 1.0) for reply in replies], 1000)
    return pack


def gradient(model: PolicyModel, pack: Pack) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.module.zero_grad()
    logprobs = model.logprobs(pack)
    logprobs.sum().backward()
    return logprobs.detach(), [each.grad.clone() for each in model.module.parameters() if each.grad is not None]


def test_logprobs_and_gradients_are_those_of_the_whole_pack(
    model: PolicyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = long_prompt_and_short_replies()
    whole, whole_gradient = gradient(model, pack)  # as many queries as fit into one block
    assert len(pack.ids) < pack_attention.QUERY_TOKENS
    monkeypatch.setattr(pack_attention, "QUERY_TOKENS", 16)
    in_blocks, blocks_gradient = gradient(model, pack)

    torch.testing.assert_close(in_blocks, whole)
    assert len(blocks_gradient) == len(whole_gradient) > 0
    for mine, theirs in zip(blocks_gradient, whole_gradient, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_block_has_only_the_keys_that_it_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_attention, "QUERY_TOKENS", 2)
    # A prompt of two tokens, and behind it two replies of two tokens each.
    visible = torch.tensor(
        [
            [1, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 0, 0, 1, 0],
            [1, 1, 0, 0, 1, 1],
        ]
    ).bool()
    blocks = query_blocks(visible)
    assert [block.keys.tolist() for block in blocks] == [[0, 1], [0, 1, 2, 3], [0, 1, 4, 5]]
    assert [block.queries for block in blocks] == [slice(0, 2), slice(2, 4), slice(4, 6)]
    assert blocks[2].mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_bfloat16_trains_in_bfloat16_and_scores_in_float32(model: PolicyModel) -> None:
    pack = long_prompt_and_short_replies()
    halved = PolicyModel(str(model.folder), "cpu", "bfloat16")
    exact = model.logprobs(pack).detach()

    apart = (halved.logprobs(pack).detach() - exact).abs().max()
    assert 0 < apart < 0.2
    assert halved.score([1, 2, 3, 4]) == model.score([1, 2, 3, 4])
