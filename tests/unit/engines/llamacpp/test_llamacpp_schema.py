"""Which schemas are never sent to llama.cpp, and how the others are."""

from __future__ import annotations

from typing import Any

import pytest

from polar.engines.llamacpp.forced_token import LAYOUT, MAX_ITEMS, is_too_large, schema_fields

LONG = {"type": "array", "maxItems": MAX_ITEMS + 1}


@pytest.mark.parametrize(
    "schema",
    [
        LONG,
        {"type": "array", "minItems": 1e12},
        {"type": "object", "properties": {"a": LONG}},
        {"anyOf": [{"type": "string"}, LONG]},
        {"$defs": {"long": LONG}, "$ref": "#/$defs/long"},
    ],
)
def test_long_arrays_are_found_wherever_they_are(schema: dict[str, Any]) -> None:
    assert is_too_large(schema)


def test_a_schema_nested_too_deep_is_found_before_it_is_written() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(900):
        schema = {"type": "array", "items": schema}
    assert is_too_large(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array", "maxItems": MAX_ITEMS},
        {"type": "string", "maxLength": 10**9},
        {"type": "object", "properties": {"maxItems": {"type": "integer", "maximum": 10**9}}},
        {"type": "array", "maxItems": "many"},
    ],
)
def test_other_bounds_are_none_of_its_business(schema: dict[str, Any]) -> None:
    assert not is_too_large(schema)


def test_without_a_schema_there_are_no_fields() -> None:
    assert schema_fields(None) == {}


def test_an_empty_schema_is_any_object() -> None:
    assert schema_fields({}) == {"json_schema": {**LAYOUT, "type": "object"}}


def test_a_layout_of_ones_own_stays() -> None:
    own = {"x-guidance": {"whitespace_flexible": True}, "type": "string"}
    assert schema_fields(own) == {"json_schema": own}
