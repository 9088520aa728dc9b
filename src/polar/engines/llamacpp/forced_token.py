"""Requests for one forced token: they recover missing logprobs, and show whether a JSON schema has an effect.

llama.cpp computes but does not report the logprob of a token that ends inside a character. So the same prefix is
evaluated once more for one token, with a complete token forced and a ranking long enough to include the missing
one. llama.cpp ranks by the model's own softmax, before any bias, so this is the same number; known logprobs
agree within 1e-3.

Some builds refuse a JSON schema that they cannot use, some ignore it, and a long array ends the process. So a
schema is first tried on the reply's own prompt, with a forced token that no JSON begins with: if the server
samples it, the schema has no effect. The prompt stays in the sequence's cache and is not evaluated twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

from polar.engines.llamacpp.protocol import NO_PROBABILITY, Complete, Timings
from polar.errors import SchemaRefused

RANKING_SIZES = (64, 2048, 10_000_000)
"""Nearly every sampled token is among the first 64; the last size is larger than any vocabulary."""
FORCING_BIAS = 1000.0
MAX_ITEMS = 10_000
"""llama.cpp expands an array item by item: a bound of 10^9 would take all memory."""
MAX_DEPTH = 128
LAYOUT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""Forbids long runs of white space, which JSON allows and small models tend to repeat. For builds with llguidance;
others limit white space themselves and ignore it."""


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


async def try_schema(
    complete: Complete, no_json_id: int, schema: dict[str, Any], prompt_ids: Sequence[int], sequence: int
) -> Timings:
    """The cost of the prompt. `no_json_id`: a token that no JSON begins with. Raises `SchemaRefused`."""
    if is_too_large(schema):
        raise SchemaRefused(
            f"llama.cpp cannot use a json_schema with arrays of more than {MAX_ITEMS} items, "
            f"or nested deeper than {MAX_DEPTH}: simplify it"
        )
    body = forcing_body(prompt_ids, no_json_id, sequence)
    reply = await complete({**body, **schema_fields(schema)})
    if no_json_id in reply.tokens:
        raise SchemaRefused("llama.cpp cannot constrain a reply to this json_schema: simplify it")
    return reply.timings


def schema_fields(schema: dict[str, Any] | None) -> dict[str, Any]:
    """The fields of a `/completion` body. An empty schema becomes that of any object."""
    return {} if schema is None else {"json_schema": {**LAYOUT, **(schema or {"type": "object"})}}


def is_too_large(schema: Any, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return True
    if isinstance(schema, list):
        return any(is_too_large(part, depth + 1) for part in cast("list[Any]", schema))
    if not _is_object(schema):
        return False
    bounds = (schema.get(name) for name in ("minItems", "maxItems"))
    if any(isinstance(bound, int | float) and bound > MAX_ITEMS for bound in bounds):
        return True
    return any(is_too_large(part, depth + 1) for part in schema.values())


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
