"""A random Llama of a few thousand parameters and its tokenizer, on one thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 64


def tiny_tokenizer() -> Any:
    words = {"<pad>": 0, "<eos>": 3} | {f"w{n}": n for n in range(WORDS) if n not in (0, 3)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def tiny_llama(vocabulary: int = WORDS) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=3,
    )
    return LlamaForCausalLM(config)


def saved(folder: Path) -> str:
    """The path of model and tokenizer: some trainers load by name only."""
    tiny_llama().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def weights(model: Any) -> Any:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).clone()
