"""The reference of the rollout server's HTTP API, made from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polar.dashboard.live.pages import dashboard
from polar.server.api_reference import ApiField, ApiOperation, ApiSchema, by_tag, operations_of, schemas_of
from polar.server.app import openapi_document

INTRODUCTION = """# HTTP API

The rollout server's API, as its own page `/docs` shows it. Send the control token as
`Authorization: Bearer TOKEN`; routes of nodes take the key that a node got when it registered
([who reaches what](../service.md#closed-by-default)). `/openapi.json` of a running server is the same for
programs.
"""


def api_page() -> str:
    document = openapi_document(dashboard())
    parts = [INTRODUCTION]
    for tag, operations in by_tag(operations_of(document)):
        parts += [f"## {tag}\n", *map(_operation, operations)]
    parts += ["## Types\n", *map(_schema, schemas_of(document))]
    return "\n".join(parts)


def _operation(operation: ApiOperation) -> str:
    head = f"### {operation.summary}\n\n`{operation.method} {operation.path}`\n\n{operation.description}\n"
    return f"{head}\n{_table(_rows(operation))}"


def _rows(operation: ApiOperation) -> Iterator[tuple[str, str, str]]:
    yield from map(_field, operation.parameters)
    if operation.body:
        yield "request", operation.body, "the body"
    for status, answer in operation.answers:
        yield status, answer or "no body", "answer"


def _schema(schema: ApiSchema) -> str:
    values = f"One of: {', '.join(f'`{value}`' for value in schema.values)}\n" if schema.values else ""
    return f"### {schema.name}\n\n{schema.description}\n\n{values}\n{_table(map(_field, schema.fields))}"


def _field(field: ApiField) -> tuple[str, str, str]:
    notes = (field.note, "required" if field.required else "")
    return f"`{field.name}`", field.type, ", ".join(note for note in notes if note)


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(["| | type | |", "|---|---|---|", *lines, ""]) if lines else ""
