# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The keys and values of the running batch, and attention over them.

Each sequence has a row, and a token's column is its position. So a sequence joins and leaves the batch without
padding, and one of any length stands beside another of any length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import Cache

ATTENTION = "polar_rows"
UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of attention that change its result and that `row_attention` does not compute."""


class KeyValueRows(Cache):
    """Preallocated, so that a step copies nothing of what earlier steps have computed."""

    def __init__(self, config: Any, rows: int, columns: int, like: Tensor) -> None:
        super().__init__(layers=[])
        heads = config.num_key_value_heads or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # Zeros: attention multiplies hidden columns by 0, which memory that holds NaN would survive.
        shape = (config.num_hidden_layers, 2, rows, heads, columns, width)
        self._values = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self._layers = [(layer[0], layer[1]) for layer in self._values]
        self._rows: Tensor | slice = slice(0)
        self._columns: Tensor | slice = slice(0)
        self._longest = 0
        self._used = 0
        """Columns that ever held something."""

    @property
    def token_bytes(self) -> int:
        layers, two, _, heads, _, width = self._values.shape
        return layers * two * heads * width * self._values.element_size()

    def point_at_row(self, row: int, start: int, end: int) -> None:
        """The next forward computes the columns `start` to before `end` of one row."""
        self._rows, self._columns, self._longest = slice(row, row + 1), slice(start, end), end

    def point_at_columns(self, columns: Tensor, longest: int) -> None:
        """The next forward computes one column of each of the first rows, which need `longest` columns."""
        self._rows = torch.arange(len(columns), device=columns.device)
        self._columns, self._longest = columns, longest

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by each layer with what it computed; returns all that it attends to."""
        keys, values = self._layers[layer_idx]
        self._used = max(self._used, self._longest)
        if isinstance(self._columns, slice):
            keys[self._rows, :, self._columns], values[self._rows, :, self._columns] = key_states, value_states
            return keys[self._rows, :, : self._longest], values[self._rows, :, : self._longest]
        keys[self._rows, :, self._columns] = key_states[:, :, 0]
        values[self._rows, :, self._columns] = value_states[:, :, 0]
        count = len(self._columns)
        return keys[:count, :, : self._longest], values[:count, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._longest

    def take(self, row: int, tokens: int) -> Tensor:
        """A copy of the first columns of a row."""
        return self._values[:, :, row, :, :tokens].clone()

    def put(self, row: int, taken: Tensor, tokens: int) -> None:
        self._values[:, :, row, :, :tokens] = taken[:, :, :, :tokens]

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._values[:, :, target, :, :tokens] = self._values[:, :, source, :, :tokens]

    def clear(self) -> None:
        self._values[..., : self._used, :] = 0
        self._used = 0


def row_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention in which the query heads that share keys are taken as more queries of one head. transformers
    repeats the keys for each of them, which copies the whole cache at every step.

    `shared_columns` in `more`: so many first columns hold the same in all rows. Only for one token of each row."""
    if wrong := [name for name in UNSUPPORTED if more.get(name) is not None]:
        raise NotImplementedError(f"the torch engine does not compute attention with {', '.join(wrong)}")
    batch, heads, tokens, width = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(batch, key.shape[1], groups * tokens, width)
    mask = attention_mask if tokens == 1 else attention_mask.repeat(1, 1, groups, 1)
    if shared := more.get("shared_columns", 0):
        output = _shared_attention(folded, key, value, mask, scaling or width**-0.5, shared)
    else:
        output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch, heads, tokens, width).transpose(1, 2).contiguous(), None


def _shared_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, shared: int
) -> Tensor:
    """Reads the shared columns once, in the first row, for the queries of all rows. What a step reads of keys and
    values is then hardly more for many rows with a long common prompt than for one."""
    rows, heads, groups, width = query.shape
    everyone = query.transpose(0, 1).reshape(heads, rows * groups, width)
    common = (everyone @ key[0, :, :shared].transpose(-1, -2)).view(heads, rows, groups, shared).transpose(0, 1)
    own = (query @ key[:, :, shared:].transpose(-1, -2)).masked_fill(~mask[..., shared:], -torch.inf)
    weights = (torch.cat([common, own], -1).float() * scaling).softmax(-1).to(value.dtype)
    of_common = weights[..., :shared].transpose(0, 1).reshape(heads, rows * groups, shared) @ value[0, :, :shared]
    of_own = weights[..., shared:] @ value[:, :, shared:]
    return of_common.view(heads, rows, groups, width).transpose(0, 1) + of_own
