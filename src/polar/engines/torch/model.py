# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The model of the sampler: three kinds of forward, and nothing of requests.

`fill` computes keys and values of a row, `step` the logits after one more token of each row, `score` the logprobs
of given tokens by transformers' own attention and cache, so that scoring checks the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from polar.engines.torch.attention import ATTENTION, KeyValueRows, row_attention
from polar.engines.torch.settings import SamplerSettings
from polar.errors import ConfigError

SCORED_TOKENS = 512
"""Per forward: logits of a whole context would take gigabytes."""
SCORING_ATTENTION = "sdpa"


class SamplerModel:
    """Only one thread may use it."""

    def __init__(self, model: Any, parallel: int, context_tokens: int) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config: Any = model.config
        check_layers(self.config)
        longest = getattr(self.config, "max_position_embeddings", None) or context_tokens
        self.context_tokens = min(context_tokens, longest)
        self.parallel = parallel
        self.rows = KeyValueRows(self.config, parallel, self.context_tokens, next(model.parameters()))
        AttentionInterface.register(ATTENTION, row_attention)
        self.model.set_attn_implementation(ATTENTION)

    @classmethod
    def load(cls, settings: SamplerSettings) -> SamplerModel:
        device = chosen_device(settings.device)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        if settings.dtype != "auto":
            dtype = getattr(torch, settings.dtype)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                settings.model, dtype=dtype, attn_implementation=SCORING_ATTENTION
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot load the model {settings.model!r}: {error}; name a folder with config and safetensors"
            ) from error
        return cls(model.to(device), settings.parallel, settings.context_tokens)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a reply unless the request ignores them."""
        generation = getattr(self.model, "generation_config", None)
        found: Any = getattr(generation, "eos_token_id", None)
        if found is None:
            found = self.config.eos_token_id
        if found is None:
            return frozenset()
        return frozenset([found] if isinstance(found, int) else found)

    def fill(self, row: int, start: int, ids: Sequence[int]) -> None:
        """Computes keys and values of `ids`, which stand in `row` from `start` on."""
        end = start + len(ids)
        positions = torch.arange(start, end, device=self.device)
        columns = torch.arange(end, device=self.device)
        self.rows.point_at_row(row, start, end)
        self._forward(self._tensor([ids]), positions[None], (columns <= positions[:, None])[None, None])

    def step(self, ids: Sequence[int], positions: Sequence[int], shared: int = 0) -> Tensor:
        """Logits after one token of each of the first rows, in float32. shared: so many first columns hold the
        same tokens in all of these rows."""
        places, longest = self._tensor(positions), max(positions) + 1
        visible = torch.arange(longest, device=self.device) <= places[:, None]
        self.rows.point_at_columns(places, longest)
        # On a GPU the many small operations would cost more than what is read less.
        columns = shared if self.device.type == "cpu" and len(ids) > 1 else 0
        logits = self._forward(self._tensor(ids)[:, None], places[:, None], visible[:, None, None], columns)
        return logits[:, -1].float()

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor, shared_columns: int = 0) -> Tensor:
        return self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.rows,
            use_cache=True,
            logits_to_keep=1,
            shared_columns=shared_columns,
        ).logits

    def score(self, ids: Sequence[int]) -> list[float]:
        """The logprob of each id but the first after those before it."""
        self.model.set_attn_implementation(SCORING_ATTENTION)
        try:
            cache = DynamicCache(config=self.config)
            found: list[float] = []
            for start in range(0, len(ids) - 1, SCORED_TOKENS):
                end = min(start + SCORED_TOKENS, len(ids) - 1)
                chunk = self._tensor([ids[start:end]])
                logits = self.model(input_ids=chunk, past_key_values=cache, use_cache=True).logits[0].float()
                following = self._tensor(ids[start + 1 : end + 1])[:, None]
                found += logits.log_softmax(-1).gather(-1, following)[:, 0].tolist()
            return found
        finally:
            self.model.set_attn_implementation(ATTENTION)

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self.device)


def chosen_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: PyTorch finds no GPU here; use `auto` or `cpu`")
    return name


def check_layers(config: Any) -> None:
    """Refuses models whose layers keep more or less than keys and values of every token."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    kinds |= {name for name in ("sliding_window", "attn_logit_softcapping") if getattr(config, name, None)}
    if kinds:
        raise ConfigError(
            f"the torch engine runs models with full attention in every layer, and this one ({config.model_type}) "
            f"has {', '.join(sorted(kinds))}; use the engine `vllm`"
        )
