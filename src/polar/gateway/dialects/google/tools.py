"""The function declarations of a Google request, and its schema notation as JSON schema.

Google writes types in capitals, counts as strings, and "or null" as a flag.
"""

from __future__ import annotations

from typing import Any, cast

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.google.messages import camel_fields, one_or_list
from polar.types import Tool

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_RENAMED = {"defs": "$defs", "ref": "$ref"}
_ONE = ("items", "additionalProperties", "not")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "patternProperties")
_DROPPED = ("nullable", "propertyOrdering")
_CALLING = "toolConfig.functionCallingConfig"


def read_tools(body: dict[str, Any]) -> tuple[Tool, ...]:
    """The declared functions. Tools that Google's servers would run, such as a search, are left out."""
    allowed = _allowed(body.get("toolConfig"))
    found: list[Tool] = []
    for index, raw in enumerate(one_or_list(body.get("tools"), "tools")):
        where = f"tools[{index}].functionDeclarations"
        declared = one_or_list(camel_fields(raw, f"tools[{index}]").get("functionDeclarations"), where)
        found += [_tool(item, f"{where}[{number}]") for number, item in enumerate(declared)]
    return tuple(tool for tool in found if allowed is None or tool.name in allowed)


def _allowed(raw: Any) -> tuple[str, ...] | None:
    """Names of the functions that the model may call; None for all."""
    config = camel_fields(camel_fields(raw, "toolConfig").get("functionCallingConfig"), _CALLING)
    where = f"{_CALLING}.mode"
    mode = read.text(config.get("mode"), where).upper()
    if mode == "ANY":
        raise read.bad(f"{where} must not be ANY: {read.FORCED_CALL}", where)
    if mode not in ("", "MODE_UNSPECIFIED", "AUTO", "VALIDATED", "NONE"):
        raise read.bad(f"unknown mode {mode[:40]!r}", where)
    if mode == "NONE":
        return ()
    where = f"{_CALLING}.allowedFunctionNames"
    return tuple(read.name(item, where) for item in read.items(config.get("allowedFunctionNames"), where)) or None


def _tool(raw: Any, where: str) -> Tool:
    function = camel_fields(raw, where)
    schema: Any = function.get("parametersJsonSchema")
    return Tool(
        name=read.name(function.get("name"), f"{where}.name"),
        description=read.text(function.get("description"), f"{where}.description"),
        parameters=json_schema(read.fields(function.get("parameters"))) if schema is None else read.fields(schema),
    )


def json_schema(value: Any) -> Any:
    """A schema in Google's notation as JSON schema. Other values, such as `additionalProperties: false`, stay."""
    if not isinstance(value, dict):
        return value
    sent = {_keyword(key): item for key, item in cast("dict[str, Any]", value).items()}
    schema = {key: _translated(key, item) for key, item in sent.items() if key not in _DROPPED}
    if str(schema.get("type")).lower() == "type_unspecified":
        del schema["type"]
    return _or_null(schema) if sent.get("nullable") is True else schema


def closed(schema: Any) -> Any:
    """The schema of a reply, with objects limited to their named properties. Google's notation always means that,
    and without the limit a constrained model may add properties endlessly."""
    if isinstance(schema, list):
        return [closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(item) for key, item in cast("dict[str, Any]", schema).items()}
    is_object = inner.get("type") == "object" and isinstance(inner.get("properties"), dict)
    return {"additionalProperties": False, **inner} if is_object else inner


def _keyword(key: str) -> str:
    key = read.camel(key)
    return _RENAMED.get(key, key)


def _translated(key: str, value: Any) -> Any:
    if key == "type":
        return _type(value)
    if key in _ONE:
        return json_schema(value)
    if key in _LISTS and isinstance(value, list):
        return [json_schema(item) for item in cast("list[Any]", value)]
    if key in _NAMED:
        return {name: json_schema(item) for name, item in read.fields(value).items()}
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
    kind = schema.get("type")
    if isinstance(kind, str):
        widened: dict[str, Any] = {**schema, "type": [kind, "null"]}
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            widened["enum"] = [*schema["enum"], None]
        return widened
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema
