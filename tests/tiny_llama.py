"""A small Llama with random weights, and logprobs as transformers computes them in one forward. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 300


def tiny_llama(seed: int = 0, *, tied: bool = False, vocabulary: int = VOCABULARY) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.2,  # far from uniform, so that a wrong context shows
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def saved(folder: Path, seed: int = 0, *, tied: bool = False, vocabulary: int = VOCABULARY) -> Path:
    tiny_llama(seed, tied=tied, vocabulary=vocabulary).save_pretrained(folder)
    return folder


def recomputed(model: Any, prompt_ids: Sequence[int], reply_ids: Sequence[int]) -> list[float]:
    """The logprobs of a reply after its prompt, by one forward over all of it."""
    ids = [*prompt_ids, *reply_ids]
    with torch.no_grad():
        logprobs = model(torch.tensor([ids]), use_cache=False).logits[0].float().log_softmax(-1)
    start = len(prompt_ids) - 1
    return [logprobs[start + n, token_id].item() for n, token_id in enumerate(reply_ids)]
