"""Holding a reply to a JSON schema: what llama.cpp does with one that it cannot use, told before it samples.

Some builds answer such a schema with an error, some sample as if there were none, and a long array ends the
process. So a schema is tried on the reply's own prompt first, with a token forced that begins no JSON: where it
comes through, nothing holds the reply. The prompt stays in the sequence's cache and is not evaluated twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard, cast

from polar.engines.llamacpp.protocol import Answer, Timings
from polar.engines.llamacpp.recovery import forcing_body
from polar.errors import SchemaRefused

MAX_ITEMS = 10_000
"""llama.cpp writes out an array item by item: one bound of 10^9 takes all memory there is."""
MAX_DEPTH = 128
LAYOUT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""JSON allows any run of white space, and small models lose themselves in one. For builds with llguidance; others
have bounds of their own and pass over it."""


class SchemaTrial:
    """`ask` posts a `/completion` body; `no_json_id` is a token no JSON begins with."""

    def __init__(self, ask: Callable[[dict[str, Any]], Awaitable[Answer]], no_json_id: int) -> None:
        self._ask = ask
        self._no_json_id = no_json_id

    async def run(self, schema: dict[str, Any], prompt_ids: Sequence[int], sequence: int) -> Timings:
        """What the prompt cost. Raises `SchemaRefused`."""
        if is_too_large(schema):
            raise SchemaRefused(
                f"llama.cpp takes no json_schema with arrays of more than {MAX_ITEMS} items, "
                f"nor one nested deeper than {MAX_DEPTH}"
            )
        body = forcing_body(prompt_ids, self._no_json_id, sequence)
        answer = await self._ask({**body, **schema_fields(schema)})
        if self._no_json_id in answer.tokens:
            raise SchemaRefused("llama.cpp cannot hold a reply to this json_schema: ask for a plainer one")
        return answer.timings


def schema_fields(schema: dict[str, Any] | None) -> dict[str, Any]:
    """What a `/completion` body says of the schema. An empty one is llama.cpp's word for any object."""
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
