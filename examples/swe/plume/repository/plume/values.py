"""Values with their filters, and the names that are visible where they are printed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plume.errors import TemplateError
from plume.filters import FILTERS, Safe, escape

QUOTED = re.compile(r"""("[^"]*"|'[^']*')""")
NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")
NUMBER = re.compile(r"-?\d+(\.\d+)?")


class Scope:
    """Names, in layers: an inner layer hides names of an outer one."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._layers: list[dict[str, Any]] = [dict(names)]

    def __enter__(self) -> "Scope":
        self._layers.append({})
        return self

    def __exit__(self, *error: object) -> None:
        self._layers.pop()

    def set(self, name: str, value: Any) -> None:
        self._layers[-1][name] = value

    def get(self, name: str) -> Any:
        for layer in reversed(self._layers):
            if name in layer:
                return layer[name]
        return None


@dataclass(frozen=True)
class Value:
    text: str
    filters: tuple[tuple[str, tuple["Value", ...]], ...] = ()

    def of(self, scope: Scope) -> Any:
        value = self._plain(scope)
        for name, arguments in self.filters:
            value = FILTERS[name](value, *(argument.of(scope) for argument in arguments))
        return value

    def printed(self, scope: Scope) -> str:
        value = self.of(scope)
        if isinstance(value, Safe):
            return str(value)
        return "" if value is None else escape(str(value))

    def _plain(self, scope: Scope) -> Any:
        if QUOTED.fullmatch(self.text):
            return self.text[1:-1]
        if NUMBER.fullmatch(self.text):
            return float(self.text) if "." in self.text else int(self.text)
        first, *fields = self.text.split(".")
        value = scope.get(first)
        for field in fields:
            value = _field(value, field)
        return value


def _field(value: Any, field: str) -> Any:
    """An element, a key or an attribute; names with an underscore in front are private."""
    if isinstance(value, Mapping):
        return value.get(field)
    if field.isdigit() and isinstance(value, list | tuple | str):
        return value[int(field)] if int(field) < len(value) else None
    return None if field.startswith("_") else getattr(value, field, None)


def parse_value(text: str) -> Value:
    """Raises `TemplateError` without a place."""
    plain, *filters = (part.strip() for part in split_outside_quotes(text, "|"))
    if not (QUOTED.fullmatch(plain) or NUMBER.fullmatch(plain) or NAME.fullmatch(plain)):
        raise TemplateError(f"{plain!r} is not a value")
    return Value(plain, tuple(map(_parse_filter, filters)))


def _parse_filter(text: str) -> tuple[str, tuple[Value, ...]]:
    name, *rest = split_outside_quotes(text, ":")
    if name.strip() not in FILTERS:
        raise TemplateError(f"there is no filter {name.strip()!r}")
    arguments = split_outside_quotes(":".join(rest), ",") if rest else []
    return name.strip(), tuple(parse_value(argument.strip()) for argument in arguments)


def split_outside_quotes(text: str, separator: str) -> list[str]:
    parts = [""]
    for piece in QUOTED.split(text):
        if QUOTED.fullmatch(piece):
            parts[-1] += piece
        else:
            first, *rest = piece.split(separator)
            parts[-1] += first
            parts.extend(rest)
    return parts
