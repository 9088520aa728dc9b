"""Checks before sampling whether llama.cpp can use a JSON schema.

Some builds refuse a schema that they cannot use, some ignore it, and a long array ends the process. So a schema is
first tried on the reply's own prompt, with a forced token that no JSON begins with: if the server samples it, the
schema has no effect. The prompt stays in the sequence's cache and is not evaluated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard, cast

from polar.engines.llamacpp.protocol import Complete, Timings
from polar.engines.llamacpp.recovery import forcing_body
from polar.errors import SchemaRefused

MAX_ITEMS = 10_000
"""llama.cpp expands an array item by item: a bound of 10^9 would take all memory."""
MAX_DEPTH = 128
LAYOUT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""Forbids long runs of white space, which JSON allows and small models tend to repeat. For builds with llguidance;
others limit white space themselves and ignore it."""


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
