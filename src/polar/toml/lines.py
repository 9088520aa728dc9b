"""Lines of the fields of a TOML file, for error messages: Python's parser does not keep them.

The text must be valid TOML. Fields of an inline table stand on the line of the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

Field = tuple[int | str, ...]
"""A field with its tables, as `("tasks", 0, "budgets", "run_s")`."""

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|\#[^\n]*)
    |(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    |(?P<newline>\n)
    |(?P<mark>[\[\]{}=,])
    |(?P<bare>[^\s\#"'\[\]{}=,]+)""",
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


class FieldLines:
    """The line of each field of a file."""

    def __init__(self, text: str) -> None:
        self._line_of: dict[Field, int] = {}
        self._counts: dict[Field, int] = {}
        """How often each array of tables has occurred."""
        table: Field = ()
        for statement in _statements(text):
            if statement[0].text == "[":
                table = self._header(statement)
            else:
                names = _names(_before_equals(statement))
                for count in range(1, len(names) + 1):
                    self._line_of.setdefault((*table, *names[:count]), statement[0].line)

    def of(self, field: Field) -> int | None:
        """Of the field, or of the nearest table around it."""
        for count in range(len(field), 0, -1):
            if field[:count] in self._line_of:
                return self._line_of[field[:count]]
        return None

    def has(self, field: Field) -> bool:
        return field in self._line_of

    def _header(self, statement: list[_Token]) -> Field:
        is_array = len(statement) > 1 and statement[1].text == "["
        names = _names([token for token in statement if token.text not in "[]"])
        path: Field = ()
        for position, name in enumerate(names):
            path = (*path, name)
            if is_array and position == len(names) - 1:
                self._counts[path] = self._counts.get(path, -1) + 1
            if path in self._counts:
                self._line_of.setdefault(path, statement[0].line)
                path = (*path, self._counts[path])
            self._line_of.setdefault(path, statement[0].line)
        return path


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "skip":
            yield _Token(match.lastgroup or "", match[0], line)
        line += match[0].count("\n")


def _statements(text: str) -> Iterator[list[_Token]]:
    """Headers and assignments; a value may go over several lines."""
    statement: list[_Token] = []
    depth = 0
    for token in _tokens(text):
        if token.kind != "newline":
            statement.append(token)
            if token.kind == "mark":
                depth += (token.text in "[{") - (token.text in "]}")
        elif statement and depth == 0:
            yield statement
            statement = []
    if statement:
        yield statement


def _before_equals(statement: list[_Token]) -> list[_Token]:
    end = next((index for index, token in enumerate(statement) if token.text == "="), len(statement))
    return statement[:end]


def _names(tokens: list[_Token]) -> Field:
    """The parts of a dotted key."""
    names: list[str] = []
    for token in tokens:
        if token.kind == "text":
            names.append(token.text[1:-1] if token.text[0] == "'" else json.loads(token.text, strict=False))
        else:
            names += [part for part in token.text.split(".") if part]
    return tuple(names)
