"""The format of llama-server's `/completion`: requests, replies, and which logprob belongs to which id."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from polar.engines.base import GenerateRequest
from polar.errors import EngineDefect
from polar.types import Sampling, TokenIds

RANDOM_SEED = -1
NO_PROBABILITY = -1e30
"""llama.cpp reports the smallest float for a probability of zero."""


class TokenLogprob(msgspec.Struct, frozen=True):
    id: int
    logprob: float


class TokenReport(TokenLogprob, frozen=True):
    top_logprobs: list[TokenLogprob] = []


class Timings(msgspec.Struct, frozen=True):
    prompt_n: int
    """Prompt tokens evaluated."""
    predicted_n: int
    cache_n: int = 0
    """Prompt tokens found in the sequence's cache."""


class CompletionReply(msgspec.Struct, frozen=True):
    timings: Timings
    tokens: list[int] = []
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    tokens_predicted: int = 0
    completion_probabilities: list[TokenReport] = []


Complete = Callable[[dict[str, Any]], Awaitable[CompletionReply]]
"""Posts a `/completion` body."""


def completion_body(request: GenerateRequest, reply: TokenIds, size: int, sequence: int) -> dict[str, Any]:
    """Asks for the next `size` tokens of a reply. Every sampling value is sent: llama.cpp's own defaults change
    the distribution."""
    return {
        "prompt": [*request.prompt_ids, *reply],
        "n_predict": size,
        "id_slot": sequence,
        "cache_prompt": True,
        "stream": False,
        "return_tokens": True,
        "n_probs": 1,
        "seed": slice_seed(request.seed, len(reply)),
        "stop": [],
        **_sampling(request.sampling),
    }


def slice_seed(seed: int | None, start: int) -> int:
    """The seed of the slice that starts after `start` sampled tokens, so that no slice repeats the random
    numbers of another one."""
    if seed is None:
        return RANDOM_SEED
    digest = hashlib.blake2b(f"{seed}:{start}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Temperature first, then the cuts, in the order of other engines. Samplers at their neutral value are left
    out, so that only the temperature acts on the plain distribution."""
    cuts = {"top_k": sampling.top_k > 0, "top_p": sampling.top_p < 1, "min_p": sampling.min_p > 0}
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "samplers": ["temperature", *(name for name, used in cuts.items() if used)],
    }


def pair_logprobs(ids: Sequence[int], reports: Sequence[TokenReport]) -> list[float]:
    """A logprob per id, NaN where the server reported none or where a report is ambiguous.

    llama.cpp reports nothing for a token that ends inside a character. So the reports are a subsequence of the
    ids; a report is used only if every alignment with the ids puts it at the same position.
    """
    earliest = _match(ids, [report.id for report in reports])
    from_end = _match(ids[::-1], [report.id for report in reports[::-1]])
    latest = [len(ids) - 1 - position for position in reversed(from_end)]
    values = [math.nan] * len(ids)
    for first, last, report in zip(earliest, latest, reports, strict=True):
        if first == last and report.logprob > NO_PROBABILITY:
            values[first] = report.logprob
    return values


def _match(ids: Sequence[int], reported: Sequence[int]) -> list[int]:
    positions: list[int] = []
    for position, token_id in enumerate(ids):
        if len(positions) < len(reported) and reported[len(positions)] == token_id:
            positions.append(position)
    if len(positions) < len(reported):
        raise EngineDefect(
            f"llama.cpp reported {len(reported)} logprobs that do not belong to its {len(ids)} ids; "
            "use a server version that Polar's contract suite passes with"
        )
    return positions
