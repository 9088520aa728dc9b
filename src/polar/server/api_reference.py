"""The operations of an HTTP API as plain values, read from its OpenAPI document.

The page `/docs` of the server and the reference of the documentation are both made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class ApiField:
    """A parameter of an operation, or a field of a schema."""

    name: str
    type: str
    required: bool
    note: str
    """Where a parameter stands, or a field's default; may be empty."""


@dataclass(frozen=True)
class ApiOperation:
    tag: str
    method: str
    path: str
    summary: str
    description: str
    parameters: tuple[ApiField, ...]
    body: str
    """The type of the request's body; empty: none."""
    answers: tuple[tuple[str, str], ...]
    """Status and type."""


@dataclass(frozen=True)
class ApiSchema:
    name: str
    description: str
    fields: tuple[ApiField, ...]
    values: tuple[str, ...]
    """Of an enumeration."""


def operations_of(document: dict[str, Any]) -> list[ApiOperation]:
    """In the order of the document."""
    return [
        _operation(path, method, entry[method])
        for path, entry in document["paths"].items()
        for method in METHODS
        if method in entry
    ]


def schemas_of(document: dict[str, Any]) -> list[ApiSchema]:
    """By name."""
    return [
        _schema(name, each) for name, each in sorted(document.get("components", {}).get("schemas", {}).items())
    ]


def _operation(path: str, method: str, entry: dict[str, Any]) -> ApiOperation:
    return ApiOperation(
        tag=(entry.get("tags") or ["other"])[0],
        method=method.upper(),
        path=path,
        summary=entry.get("summary", ""),
        description=" ".join(entry.get("description", "").split()),
        parameters=tuple(_parameter(each) for each in entry.get("parameters", [])),
        body=_content(entry.get("requestBody", {})),
        answers=tuple((status, _content(answer)) for status, answer in entry.get("responses", {}).items()),
    )


def _parameter(entry: dict[str, Any]) -> ApiField:
    return ApiField(entry["name"], _type(entry["schema"]), entry.get("required", False), f"in the {entry['in']}")


def _schema(name: str, entry: dict[str, Any]) -> ApiSchema:
    required = set(entry.get("required", []))
    fields = tuple(
        ApiField(field, _type(value), field in required, _default(value))
        for field, value in entry.get("properties", {}).items()
    )
    values = tuple(map(str, entry.get("enum", [])))
    return ApiSchema(name, " ".join(entry.get("description", "").split()), fields, values)


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    return f"default {default}" if isinstance(default, str | int | float) and default != "" else ""


def _content(entry: dict[str, Any]) -> str:
    """What a body may be: the types of all its media types."""
    return " or ".join(dict.fromkeys(_media(kind, value) for kind, value in entry.get("content", {}).items()))


def _media(kind: str, value: dict[str, Any]) -> str:
    name = _type(value.get("schema", {}))
    return name if kind == "application/json" else f"{name} ({kind})"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for many in ("anyOf", "oneOf", "allOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[many]))
    if "const" in schema or "enum" in schema:
        return " or ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return "binary" if schema.get("format") == "binary" else str(kind)


def by_tag(operations: list[ApiOperation]) -> Iterator[tuple[str, list[ApiOperation]]]:
    """The operations of each tag, in the order in which the tags first come."""
    for tag in dict.fromkeys(each.tag for each in operations):
        yield tag, [each for each in operations if each.tag == tag]
