"""Google's own schema notation put into JSON schema, which is what models and engines read.

It spells types in capitals, counts in texts and "or null" as a flag.
"""

from __future__ import annotations

from typing import Any, cast

from polar.gateway.dialects.fields import camel, fields

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_RENAMED = {"defs": "$defs", "ref": "$ref"}
_ONE = ("items", "additionalProperties", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_DROPPED = ("nullable", "propertyOrdering")


def json_schema(value: Any) -> Any:
    """What is no schema, such as `additionalProperties: false`, stays as it is."""
    if not isinstance(value, dict):
        return value
    sent = {_keyword(key): item for key, item in cast("dict[str, Any]", value).items()}
    schema = {key: _translated(key, item) for key, item in sent.items() if key not in _DROPPED}
    if str(schema.get("type")).lower() == "type_unspecified":
        del schema["type"]
    return _or_null(schema) if sent.get("nullable") is True else schema


def closed(schema: Any) -> Any:
    """The same for a reply: an object has the properties it names and no others, which this notation cannot say
    and always means. Left open, a constrained model may add properties without end."""
    if isinstance(schema, list):
        return [closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(item) for key, item in cast("dict[str, Any]", schema).items()}
    is_object = inner.get("type") == "object" and isinstance(inner.get("properties"), dict)
    return {"additionalProperties": False, **inner} if is_object else inner


def _keyword(key: str) -> str:
    key = camel(key)
    return _RENAMED.get(key, key)


def _translated(key: str, value: Any) -> Any:
    if key == "type":
        return _type(value)
    if key in _ONE:
        return json_schema(value)
    if key in _LISTS and isinstance(value, list):
        return [json_schema(item) for item in cast("list[Any]", value)]
    if key in _NAMED:
        return {name: json_schema(item) for name, item in fields(value).items()}
    if key == "$ref" and isinstance(value, str):
        return value.replace("#/defs/", "#/$defs/", 1)
    if key in _COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    return value


def _type(value: Any) -> Any:
    if isinstance(value, list):
        return [_type(item) for item in cast("list[Any]", value)]
    return value.lower() if isinstance(value, str) else value


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, or null."""
    kind = schema.get("type")
    if isinstance(kind, str):
        widened: dict[str, Any] = {**schema, "type": [kind, "null"]}
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            widened["enum"] = [*schema["enum"], None]
        return widened
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema
