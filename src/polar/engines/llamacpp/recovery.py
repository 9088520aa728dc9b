"""Recovers logprobs that llama.cpp computed but did not report.

llama.cpp reports nothing for a token that ends inside a character. So the same prefix is evaluated once more for
one token, with a complete token forced and a ranking long enough to include the missing one. llama.cpp ranks by
the model's own softmax, before any bias, so this is the same number; known logprobs agree within 1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from polar.engines.llamacpp.protocol import NO_PROBABILITY, Complete

RANKING_SIZES = (64, 2048, 10_000_000)
"""Nearly every sampled token is among the first 64; the last size is larger than any vocabulary."""
FORCING_BIAS = 1000.0


class LogprobRecovery:
    """`complete_id`: a token that ends with a character."""

    def __init__(self, complete: Complete, complete_id: int) -> None:
        self._complete = complete
        self._complete_id = complete_id
        self.evaluated_tokens = 0

    async def fill(
        self, prompt_ids: Sequence[int], ids: Sequence[int], values: Sequence[float], sequence: int
    ) -> list[float]:
        """The logprobs with their gaps filled. Goes from the last gap to the first: each prefix is then in the
        sequence's cache, and only one token is evaluated again."""
        filled = list(values)
        for position in reversed(range(len(ids))):
            if math.isnan(filled[position]):
                prefix = [*prompt_ids, *ids[:position]]
                filled[position] = await self.logprob(prefix, ids[position], sequence)
        return filled

    async def logprob(self, prefix: list[int], wanted_id: int, sequence: int) -> float:
        """The logprob of a token after a prefix; NaN if its probability is zero."""
        for size in RANKING_SIZES:
            body = forcing_body(prefix, self._complete_id, sequence)
            reply = await self._complete({**body, "n_probs": size})
            self.evaluated_tokens += reply.timings.prompt_n
            for report in reply.completion_probabilities:
                for entry in report.top_logprobs:
                    if entry.id == wanted_id and entry.logprob > NO_PROBABILITY:
                        return entry.logprob
        return math.nan


def forcing_body(prompt_ids: Sequence[int], forced_id: int, sequence: int) -> dict[str, Any]:
    """Asks for one token and forces which one."""
    return {
        "prompt": [*prompt_ids],
        "n_predict": 1,
        "id_slot": sequence,
        "cache_prompt": True,
        "stream": False,
        "return_tokens": True,
        "temperature": 0.0,
        "samplers": ["temperature"],
        "logit_bias": [[forced_id, FORCING_BIAS]],
    }
