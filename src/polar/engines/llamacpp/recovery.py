"""Logprobs that llama.cpp computed but did not report, asked for again.

A token that ends inside a character has no report. The same prefix is asked once more, for one token, with a
complete token forced and the ranking long enough to show the missing one. llama.cpp ranks by the model's own
softmax, before any bias, so this is the same number; tokens whose logprob is known agree within 1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from polar.engines.llamacpp.protocol import NO_PROBABILITY, Answer

RANKING_SIZES = (64, 2048, 10_000_000)
"""Nearly every sampled token is among the first 64; the last size asks for the whole vocabulary."""
FORCING_BIAS = 1000.0


class LogprobRecovery:
    """Fills the gaps of one reply. `ask` posts a `/completion` body."""

    def __init__(self, ask: Callable[[dict[str, Any]], Awaitable[Answer]], complete_id: int) -> None:
        self._ask = ask
        self._complete_id = complete_id
        self.evaluated_tokens = 0

    async def fill(
        self, prompt_ids: Sequence[int], ids: Sequence[int], values: Sequence[float], sequence: int
    ) -> list[float]:
        """The logprobs with their gaps filled. From the last gap to the first: each prefix then is a cut of what
        the sequence's cache holds, and only one token is evaluated again."""
        filled = list(values)
        for position in reversed(range(len(ids))):
            if math.isnan(filled[position]):
                prefix = [*prompt_ids, *ids[:position]]
                filled[position] = await self.logprob(prefix, ids[position], sequence)
        return filled

    async def logprob(self, prefix: list[int], wanted_id: int, sequence: int) -> float:
        """Of one token after a prefix; NaN where llama.cpp gives it no probability."""
        for size in RANKING_SIZES:
            body = forcing_body(prefix, self._complete_id, sequence)
            answer = await self._ask({**body, "n_probs": size})
            self.evaluated_tokens += answer.timings.prompt_n
            for report in answer.completion_probabilities:
                for entry in report.top_logprobs:
                    if entry.id == wanted_id and entry.logprob > NO_PROBABILITY:
                        return entry.logprob
        return math.nan


def forcing_body(prompt_ids: Sequence[int], forced_id: int, sequence: int) -> dict[str, Any]:
    """Asks for one token, and for which."""
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
