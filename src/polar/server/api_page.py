"""`/docs`: the API as one page of plain HTML. It has no script and needs no other host."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Any

from polar.server.api_reference import ApiField, ApiOperation, ApiSchema, by_tag, operations_of, schemas_of

STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } summary code { margin-right: .6rem; } .method { font-weight: 700; }
table { border-collapse: collapse; width: 100%; } td, th { border-top: 1px solid var(--line); padding: .25rem
.5rem; text-align: left; vertical-align: top; }
nav a { margin-right: .8rem; }
"""
INTRODUCTION = (
    "Send the control token as <code>Authorization: Bearer TOKEN</code>. Routes of nodes take the key that a "
    'node got when it registered. The same as a document for programs: <a href="openapi.json">openapi.json</a>.'
)


def api_page(document: dict[str, Any]) -> str:
    operations, schemas = operations_of(document), schemas_of(document)
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    groups = list(by_tag(operations))
    links = "".join(f'<a href="#{html.escape(tag)}">{html.escape(tag)}</a>' for tag, _ in groups)
    known = {schema.name for schema in schemas}
    body = "".join(_group(tag, members, known) for tag, members in groups)
    types = "".join(_schema(schema, known) for schema in schemas)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f'<body><h1>{title}</h1><p>{INTRODUCTION}</p><nav>{links}<a href="#types">types</a></nav>{body}'
        f'<h2 id="types">types</h2>{types}</body></html>'
    )


def _group(tag: str, operations: Iterable[ApiOperation], known: set[str]) -> str:
    shown = "".join(_operation(each, known) for each in operations)
    return f'<h2 id="{html.escape(tag)}">{html.escape(tag)}</h2>{shown}'


def _operation(operation: ApiOperation, known: set[str]) -> str:
    head = f'<code><span class="method">{operation.method}</span> {html.escape(operation.path)}</code>'
    return (
        f"<details><summary>{head}{html.escape(operation.summary)}</summary>"
        f"<p>{_prose(operation.description)}</p>{_table(_rows(operation, known))}</details>"
    )


def _rows(operation: ApiOperation, known: set[str]) -> Iterator[tuple[str, str, str]]:
    yield from (_field(each, known) for each in operation.parameters)
    if operation.body:
        yield "request", _linked(operation.body, known), "the body"
    for status, answer in operation.answers:
        yield html.escape(status), _linked(answer, known) or "no body", "answer"


def _schema(schema: ApiSchema, known: set[str]) -> str:
    name = html.escape(schema.name)
    values = f"<p>One of: <code>{html.escape(', '.join(schema.values))}</code></p>" if schema.values else ""
    table = _table(_field(each, known) for each in schema.fields)
    return (
        f'<details id="type-{name}"><summary><code>{name}</code></summary>'
        f"<p>{_prose(schema.description)}</p>{values}{table}</details>"
    )


def _field(field: ApiField, known: set[str]) -> tuple[str, str, str]:
    notes = [note for note in (field.note, "required" if field.required else "") if note]
    return f"<code>{html.escape(field.name)}</code>", _linked(field.type, known), html.escape(", ".join(notes))


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{cells}</table>" if cells else ""


def _linked(text: str, known: set[str]) -> str:
    """Names of types as links to them."""

    def link(match: re.Match[str]) -> str:
        name = match[0]
        return f'<a href="#type-{name}">{name}</a>' if name in known else name

    return re.sub(r"[\w-]+", link, html.escape(text))


def _prose(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
