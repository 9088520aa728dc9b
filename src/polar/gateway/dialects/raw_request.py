"""A request as received, and the reading of its JSON, which any client may have sent.

Every dialect imports this module as `read`. A value of the wrong shape raises a `Problem` that names the field.
Its message has no digits, because harnesses search errors for the digits of a retryable status.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec
import orjson

from polar.gateway.dialects.problems import Problem, too_deep
from polar.types import Image, Message, Tool, ToolCall

FORCED_CALL = "a forced call is not sampled from the plain model"
ONE_SAMPLE = "each sample is a session of its own"
STREAMING_FIELDS = frozenset({"stream", "stream_options"})
"""Not part of a request's identity: a retry without streaming is the same call."""
_Role = Literal["system", "user", "assistant", "tool"]
_MOST_TOKENS = 2**64 - 1
"""The largest number that orjson can write; larger ones are read as rounded floats."""


class HistoryItem:
    """One entry of a raw history. Requests of one session share the items of a byte-identical beginning: every
    request that contains an item has the same items before it."""

    __slots__ = ("_digest", "parsed", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        """The decoded JSON. Do not modify it: requests share it."""
        self.parsed: Any = None
        """The dialect's result for this item. It depends on this item and those before it, on nothing else."""
        self._digest = b""

    def digest(self, plain: Callable[[Any], Any] | None = None) -> bytes:
        """`digest_item` of the value. `plain` removes what the dialect does not count as a difference."""
        if not self._digest:
            self._digest = digest_item(plain(self.value) if plain else self.value)
        return self._digest


class RawRequest(msgspec.Struct, frozen=True):
    """A request as received: its JSON body, and what its URL adds."""

    data: dict[str, Any]
    action: str = ""
    """What the path asks for, such as `streamGenerateContent`."""
    query: Mapping[str, str] = {}
    values: list[Any] | None = None
    """The list in `data` that is the history, if the reader of the body has made `items` of it."""
    items: tuple[HistoryItem, ...] = ()
    """One per entry of `values`."""

    def history(self, values: list[Any]) -> tuple[HistoryItem, ...]:
        """The items of the list that holds the history."""
        return self.items if values is self.values else tuple(map(HistoryItem, values))


def digest_item(item: Any) -> bytes:
    """Digest of one raw JSON value that ignores the order of keys. Raises `Problem` if it cannot be serialised."""
    try:
        text = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise too_deep() from error
    return hashlib.blake2b(text, digest_size=16).digest()


def digest_rest(data: dict[str, Any], item_fields: tuple[str, ...]) -> bytes:
    """Digest of all fields except the items and `STREAMING_FIELDS`."""
    left_out = STREAMING_FIELDS | set(item_fields)
    rest = {name: value for name, value in data.items() if name not in left_out}
    # A reply may repeat a part of it some levels deeper, and must still be serialisable.
    return digest_item([[[[[[[[rest]]]]]]]])


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
    """The fields of an object. Any other value has none; the check of a required field then refuses it."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object; null counts as empty."""
    if not isinstance(value, dict | None):
        raise bad(f"{where} must be an object", where)
    return fields(value)


def items(value: Any, where: str) -> list[Any]:
    """A list; null counts as empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad(f"{where} must be a list", where)
    return cast("list[Any]", value)


def text(value: Any, where: str) -> str:
    """A string; null counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad(f"{where} must be a string", where)
    return value


def name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise bad(f"{where} must be a non-empty string", where)
    return value


def flag(value: Any, where: str) -> bool:
    """True or false; null counts as false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise bad(f"{where} must be true or false", where)


def number(
    value: Any, where: str, least: float = -math.inf, most: float = math.inf, *, whole: bool = False
) -> float:
    """A whole number may be written as a float: JavaScript does not distinguish them."""
    if type(value) not in (int, float) or not least <= value <= most or (whole and value != int(value)):
        raise bad(f"{where} must be a {'whole ' if whole else ''}number in the range of the API", where)
    return int(value) if whole else value


def positive(value: Any, where: str) -> int | None:
    """A number of tokens, or null."""
    return None if value is None else int(number(value, where, 1, _MOST_TOKENS, whole=True))


def stop_texts(value: Any, where: str) -> tuple[str, ...]:
    """One string or a list of strings; empty ones are dropped."""
    found = [value] if isinstance(value, str) else items(value, where)
    texts = tuple(text(item, where) for item in found)
    if len(texts) > 16 or any(len(item) > 200 for item in texts):
        raise bad(f"{where}: at most sixteen strings of at most two hundred characters", where)
    return tuple(item for item in texts if item)


def refuse_fields(data: dict[str, Any], refused: Mapping[str, str], where: str = "") -> None:
    """For fields that change the reply and that we do not support. To ignore them would mislead the harness."""
    for field, reason in refused.items():
        if data.get(field):
            raise bad(f"{field} is not supported: {reason}", where + field)


def calls_allowed(tool_choice: Any) -> bool:
    """False if the model must not call tools. Refuses a choice that forces a call."""
    if tool_choice not in (None, "auto", "none"):
        raise bad(f"tool_choice must be auto or none: {FORCED_CALL}", "tool_choice")
    return tool_choice != "none"


def arguments_text(value: Any) -> str:
    """A tool call's arguments as JSON text. A string is kept as it is."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def arguments_object(arguments: str) -> dict[str, Any]:
    """The arguments for a provider that sends them as an object; empty if they are not one."""
    try:
        return fields(orjson.loads(arguments or "{}"))
    except orjson.JSONDecodeError:
        return {}


def freeform_tool(name: str, description: str, namespace: str = "") -> Tool:
    """A tool that takes plain text. The model sees a function with one string, `input`."""
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return Tool(name=name, description=description, parameters=schema, freeform=True, namespace=namespace)


def freeform_input(arguments: str) -> str:
    """The text in a call of a freeform tool; all of the arguments if the model wrote another shape."""
    value = arguments_object(arguments).get("input")
    return value if isinstance(value, str) else arguments


class Content:
    """The text and the images of one message, collected in order."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._length = 0
        self._images: list[Image] = []

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

    def message(self, role: _Role, tool_call_id: str = "", *, is_error: bool = False) -> Message:
        return Message(role, self.text, tool_call_id=tool_call_id, images=self.images, is_error=is_error)


class AssistantTurn(NamedTuple):
    """One turn of the model that a history spreads over several items. Immutable, so that items can keep it."""

    texts: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    images: tuple[Image, ...] = ()

    def plus(self, more: AssistantTurn) -> AssistantTurn:
        length = sum(map(len, self.texts)) if more.images else 0
        moved = (Image(image.url, length + image.at) for image in more.images)
        return AssistantTurn(
            self.texts + more.texts, self.thoughts + more.thoughts, self.calls + more.calls, (*self.images, *moved)
        )

    def message(self) -> Message:
        reasoning = "".join(self.thoughts)
        return Message("assistant", "".join(self.texts), reasoning, self.calls, images=self.images)


_CONTENT_FIELDS = frozenset({"messages", "input", "contents", "content", "parts", "output", "functionResponse"})
"""Fields of any dialect below which an image may occur."""
_IMAGE_TYPES = ("image", "image_url", "input_image")


def first_image(value: Any, where: str = "") -> str:
    """Path of the first image in a request, such as `messages[3].content[1]`; empty if there is none."""
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
        below = (name for name in given if camel(name) in _CONTENT_FIELDS)
        entries = [(f"{where}.{name}" if where else name, given[name]) for name in below]
    return next((found for path, entry in entries if (found := first_image(entry, path))), "")


def camel(key: str) -> str:
    """`max_output_tokens` as `maxOutputTokens`: some providers accept both spellings."""
    if "_" not in key:
        return key
    first, *rest = key.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)
