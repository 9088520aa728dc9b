# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Attention over a pack on a CPU, in blocks of queries: each takes only the keys that one of its queries may see.

Of a pack with a long prompt and many short replies, that is a small part of all queries by all keys. PyTorch's CPU
kernel computes all of them, hidden ones too, which was half of a training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ATTENTION = "polar_pack"
QUERY_TOKENS = 256
"""Of a block. Fewer have less to leave out; more copy less of the keys."""


@dataclass(frozen=True)
class QueryBlock:
    queries: slice
    keys: Tensor
    """Places of the keys that at least one of the queries may attend to."""
    mask: Tensor
    """Of queries by keys."""


def query_blocks(visible: Tensor) -> list[QueryBlock]:
    """`visible`: queries by keys of a pack."""
    blocks: list[QueryBlock] = []
    for start in range(0, len(visible), QUERY_TOKENS):
        queries = slice(start, start + QUERY_TOKENS)
        rows = visible[queries]
        keys = rows.any(0).nonzero()[:, 0]
        blocks.append(QueryBlock(queries, keys, rows[:, keys]))
    return blocks


def pack_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    query_blocks: Sequence[QueryBlock] = (),
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' own for each block; without blocks, for all at once."""
    if not query_blocks:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    outputs = [
        sdpa_attention_forward(
            module,
            query[:, :, block.queries],
            key.index_select(2, block.keys),
            value.index_select(2, block.keys),
            block.mask[None, None],
            **more,
        )[0]
        for block in query_blocks
    ]
    return torch.cat(outputs, 1), None


def use_pack_attention(model: Any) -> bool:
    """False: the model has attention of its own, and computes all at once."""
    if not getattr(model, "_supports_attention_backend", False):
        return False
    AttentionInterface.register(ATTENTION, pack_attention)
    model.set_attn_implementation(ATTENTION)
    return True
