# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""From logits to a token for each sequence, with the logprob of the model's own softmax.

Each sequence draws one number a token from a generator of its own. So a seed gives the same tokens whatever else
is in the batch, as far as the logits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor


class SamplingParameters(msgspec.Struct, frozen=True):
    """As vLLM names them."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    """Set: score the prompt instead of sampling."""
    n: int = 1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    structured_outputs: object = None
    logit_bias: object = None

    @property
    def plain(self) -> bool:
        """Whether tokens come from the model's own softmax."""
        return self.temperature == 1 and self.top_p >= 1 and self.top_k < 1 and self.min_p <= 0

    def problem(self) -> str:
        """What the sampler cannot do of it; empty if it can do all."""
        refused = {
            "n": self.n != 1,
            "repetition_penalty": self.repetition_penalty != 1,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "min_tokens": self.min_tokens != 0,
            "stop": bool(self.stop),
            "structured_outputs": self.structured_outputs is not None,
            "logit_bias": self.logit_bias is not None,
        }
        names = [name for name, is_set in refused.items() if is_set]
        if names:
            return f"this sampler does not support {', '.join(names)}"
        if self.temperature < 0 or self.max_tokens < 1:
            return "`temperature` must not be negative, and `max_tokens` must be at least 1"
        return ""


def sample(
    logits: Tensor, parameters: Sequence[SamplingParameters], draws: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token and its logprob for each row of `logits`. `draws`: a number in [0, 1) for each row."""
    logprobs = logits.log_softmax(-1)
    weights = logprobs
    if not all(each.plain for each in parameters):
        weights = torch.stack([shaped(row, each) for row, each in zip(logits, parameters, strict=True)])
    # In float64: sums of many small probabilities in float32 move the borders between tokens.
    sums = weights.exp().double().cumsum(-1)
    points = torch.tensor(draws, dtype=torch.double, device=logits.device)[:, None] * sums[:, -1:]
    ids = torch.searchsorted(sums, points, right=True).clamp(max=logits.shape[-1] - 1)
    values = logprobs.gather(-1, ids)
    return ids[:, 0].tolist(), values[:, 0].tolist()


def shaped(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Logprobs of the distribution to sample from, for one sequence."""
    if parameters.temperature == 0:
        only = torch.full_like(logits, -torch.inf)
        only[logits.argmax()] = 0.0
        return only
    values = (logits / parameters.temperature).log_softmax(-1)
    if parameters.min_p > 0:
        values = values.masked_fill(values.exp() < parameters.min_p * values.exp().max(), -torch.inf)
    if 0 < parameters.top_k < len(values):
        values = values.masked_fill(values < values.topk(parameters.top_k).values[-1], -torch.inf)
    if parameters.top_p < 1:
        ordered, order = values.log_softmax(-1).sort(descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        values = values.index_fill(0, order[before >= parameters.top_p], -torch.inf)
    return values.log_softmax(-1)
