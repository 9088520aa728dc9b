"""Reading of JSON that anybody may have sent: what every dialect's `parse` is made of.

A shape that is not what the provider's API says gets a `Problem` with the place of it, never an exception.
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from polar.gateway.dialects.base import Problem
from polar.types import Image, Tool

MOST_NUMBER = 2**64
"""What JSON here can be written with; larger numbers are read as rounded ones."""


def bad(message: str, where: str | None = None) -> Problem:
    return Problem(400, "invalid_request", message, param=where)


def read_object(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad("the body is not valid JSON") from error
    if not isinstance(data, dict):
        raise bad("the body must be a JSON object")
    return cast("dict[str, Any]", data)


def fields(value: Any) -> dict[str, Any]:
    """An object's fields; anything else has none, and the check of the field that is needed says so."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: Any, where: str) -> list[Any]:
    """A list; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad(f"{where} must be a list", where)
    return cast("list[Any]", value)


def text(value: Any, where: str) -> str:
    """A text; null is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad(f"{where} must be a text", where)
    return value


def name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise bad(f"{where} must be a name", where)
    return value


def positive(value: Any, where: str) -> int | None:
    """A whole number above zero, or null."""
    if value is None:
        return None
    if type(value) is float and value.is_integer():  # JavaScript does not know the difference
        value = int(value)
    if type(value) is not int or not 1 <= value < MOST_NUMBER:
        raise bad(f"{where} must be a positive whole number of at most sixty-four bits", where)
    return value


def stop_texts(value: Any, where: str) -> tuple[str, ...]:
    """One text or a list of them; empty ones stop nothing."""
    found = [value] if isinstance(value, str) else items(value, where)
    texts = tuple(text(item, where) for item in found)
    if len(texts) > 16 or any(len(item) > 200 for item in texts):
        raise bad(f"{where}: at most sixteen texts of at most two hundred characters", where)
    return tuple(item for item in texts if item)


def arguments_text(value: Any) -> str:
    """A tool call's arguments as JSON text: a text is taken as it is, never written anew."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def arguments_object(arguments: str) -> dict[str, Any]:
    """For a provider that sends arguments as an object: `tokens/replies/tool_calls.py` lets no other through."""
    try:
        return fields(orjson.loads(arguments or "{}"))
    except orjson.JSONDecodeError:
        return {}


class Content:
    """The text and the images of one message, put together in order."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._length = 0
        self._images: list[Image] = []

    def __copy__(self) -> Content:
        content = Content()
        content._texts, content._length, content._images = [*self._texts], self._length, [*self._images]
        return content

    def add_text(self, part: str) -> None:
        self._texts.append(part)
        self._length += len(part)

    def add_image(self, url: str) -> None:
        self._images.append(Image(url=url, at=self._length))

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(self._images)


_HOLD_PARTS = frozenset({"messages", "input", "contents", "content", "parts", "output", "functionResponse"})
"""Fields of a conversation, in any dialect, below which an image may stand."""
_IMAGE_TYPES = ("image", "image_url", "input_image")


def first_image(value: Any, where: str = "") -> str:
    """Where the first image of a request stands, as `messages[3].content[1]`; empty where there is none."""
    entries: list[tuple[str, Any]] = []
    if isinstance(value, list):
        entries = [(f"{where}[{index}]", entry) for index, entry in enumerate(cast("list[Any]", value))]
    elif isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        if given.get("type") in _IMAGE_TYPES:
            return where
        data = next((name for name in ("inlineData", "inline_data") if name in given), "")
        if data:
            return f"{where}.{data}"
        held = (name for name in given if camel(name) in _HOLD_PARTS)
        entries = [(f"{where}.{name}" if where else name, given[name]) for name in held]
    return next((found for place, entry in entries if (found := first_image(entry, place))), "")


def camel(key: str) -> str:
    """`max_output_tokens` as `maxOutputTokens`: some providers spell a field in both ways."""
    if "_" not in key:
        return key
    first, *rest = key.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def freeform_tool(name: str, description: str, namespace: str = "") -> Tool:
    """A tool that takes plain text, as the model sees it: a function with one string."""
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return Tool(name=name, description=description, parameters=schema, freeform=True, namespace=namespace)


def freeform_input(arguments: str) -> str:
    """What the model wrote for such a tool; a call in another shape is handed over as it stands."""
    value = arguments_object(arguments).get("input")
    return value if isinstance(value, str) else arguments
