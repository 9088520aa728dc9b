"""A tool call's arguments as values: what they say, however they are written.

Numbers are those of JavaScript, in which most harnesses are written: 1.0 is 1, and what a double cannot hold is
rounded. What a schema says of an argument decides what else counts as the same value.
"""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import orjson

from polar.tokens.json_values import holds_more_values
from polar.types import Tool

EXACT_INTEGERS = 2**53
"""Below this a double holds every whole number. JavaScript rounds those beyond to their neighbours."""
MOST_VALUES = 2**17
"""In the arguments of a call that anybody reads."""
_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def schemas_of(tool: Tool) -> dict[str, Any]:
    """The schema of each of a tool's arguments."""
    return fields(tool.parameters.get("properties"))


def loaded(arguments: str) -> Any:
    """What a JSON text says; none at all is an empty object."""
    return _plain_numbers(orjson.loads(arguments or "{}"))


def too_many_values(arguments: str, limit: int = MOST_VALUES) -> bool:
    """Whether reading the arguments would hold up everybody else."""
    return len(arguments) > limit and holds_more_values(arguments.encode("utf-8", "surrogatepass"), limit)


def spelled(value: Any) -> str:
    """The one spelling of a value."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def is_default(value: Any, schema: dict[str, Any]) -> bool:
    """Compared as JSON, in which 0 is not false."""
    return "default" in schema and spelled(value) == spelled(_plain_numbers(schema["default"]))


def coerced(value: Any, schema: dict[str, Any]) -> Any:
    """The value that a text spells, where the schema wants a value of that kind and no text."""
    wanted: Any = schema.get("type")
    kinds = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    if not isinstance(value, str) or "string" in kinds:
        return value
    try:
        meant = loaded(value) if value else value
    except orjson.JSONDecodeError:  # words, and not the spelling of a value
        return value
    fitting = any(type(meant) in _JSON_TYPES.get(kind, ()) for kind in kinds if isinstance(kind, str))
    return meant if fitting else value


def _plain_numbers(value: Any) -> Any:
    """Numbers as a harness in JavaScript writes them: 1 for 1.0, and rounded where a double is."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return _plain_number(value)
    if isinstance(value, list):
        return [_plain_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _plain_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _plain_number(value: float) -> float:
    if abs(value) >= EXACT_INTEGERS:
        return float(value)
    return int(value) if float(value).is_integer() else value


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def fields(value: Any) -> dict[str, Any]:
    """A schema comes from the harness and may be anything."""
    return value if is_object(value) else {}
