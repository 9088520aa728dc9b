"""A random Llama of a few thousand weights, and traces for it."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from polar.credit.advantages import CreditedTrace
from polar.types import Span, Trace, logprobs, loss_mask, token_ids

VOCABULARY = 60


def save_tiny_model(folder: Path, seed: int = 0, *, tied: bool = True) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def a_credited(
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    mask: Sequence[int] | None = None,
    old: Sequence[float] | None = None,
    advantage: float = 1.0,
    session_id: str = "s",
    group_id: str = "g",
) -> CreditedTrace:
    mask = mask or [1] * len(response)
    old = old or [-math.log(VOCABULARY) if bit else 0.0 for bit in mask]  # about what a random model says
    trace = Trace(
        session_id=session_id,
        group_id=group_id,
        prompt_ids=token_ids(prompt),
        response_ids=token_ids(response),
        loss_mask=loss_mask(mask),
        logprobs=logprobs(old),
        spans=(Span("c", 0, len(response)),),
        reward=1.0,
    )
    return CreditedTrace(trace, array("d", [advantage if bit else 0.0 for bit in mask]))
