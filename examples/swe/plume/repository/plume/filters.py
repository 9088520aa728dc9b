"""What filters do with a value."""

from collections.abc import Callable, Iterable
from typing import Any


class Safe(str):
    """A text that is printed as it is."""


def escape(text: str) -> str:
    """A text that means the same in HTML, also within quotes."""
    text = text.replace("&", "&amp;")
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;").replace("'", "&#39;")


def default(value: Any, text: Any) -> Any:
    return text if value is None or value == "" else value


def join(values: Iterable[Any] | None, separator: str = "") -> str:
    return separator.join("" if value is None else str(value) for value in values or ())


def truncate(value: Any, length: int) -> str:
    text = _text(value)
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def replace(value: Any, old: str, new: str) -> str:
    return _text(value).replace(old, new)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


FILTERS: dict[str, Callable[..., Any]] = {
    "default": default,
    "join": join,
    "length": lambda value: 0 if value is None else len(value),
    "lower": lambda value: _text(value).lower(),
    "replace": replace,
    "safe": lambda value: Safe(_text(value)),
    "trim": lambda value: _text(value).strip(),
    "truncate": truncate,
    "upper": lambda value: _text(value).upper(),
}
