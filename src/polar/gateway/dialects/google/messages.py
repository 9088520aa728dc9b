"""Google's contents and parts as canonical messages.

Contents have two roles. The answers of tools are parts of the user's contents. An answer names its call by an id,
which may be missing or renamed; it is then matched by the function's name and the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson

from polar.gateway.dialects import raw_request as read
from polar.gateway.dialects.raw_request import HistoryItem
from polar.types import Message, ToolCall

REFUSED_PARTS = ("fileData", "executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts that only Google's own servers can fetch or run."""

_KINDS = ("text", "inlineData", "functionCall", "functionResponse")
_METADATA = frozenset(
    ("thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution", "mediaProcessing")
)
"""Fields of a part that are not its content."""

_USER_ROLES = ("user", "function", "tool")
_TO_STANDARD_BASE64 = str.maketrans("-_", "+/")


def camel_fields(value: Any, where: str) -> dict[str, Any]:
    """The fields of an object, with their names in camel case; null counts as empty."""
    return {read.camel(key): item for key, item in read.mapping(value, where).items()}


def one_or_list(value: Any, where: str) -> list[Any]:
    """A list, or its only entry: the provider accepts both."""
    return [value] if isinstance(value, dict) else read.items(value, where)


def system_text(value: Any) -> str:
    """A string, a content, a part or a list of parts."""
    where = "systemInstruction"
    if isinstance(value, str):
        return value
    parts = cast("list[Any]", value) if isinstance(value, list) else _raw_parts(camel_fields(value, where), where)
    texts: list[str] = []
    for index, raw in enumerate(parts):
        place = f"{where}.parts[{index}]"
        part = {"text": raw} if isinstance(raw, str) else _part(raw, place)
        if _kinds(part) not in ([], ["text"]):
            raise read.bad("systemInstruction takes text only", place)
        texts.append(read.text(part.get("text"), f"{place}.text"))
    return "".join(texts)


class GoogleHistory:
    def __init__(self, history: Sequence[HistoryItem]) -> None:
        """Contents known from an earlier request are not read again."""
        self._messages: list[Message] = []
        self._turn: read.AssistantTurn | None = None
        """The turn of the model that the next content may continue."""
        self._unanswered: tuple[ToolCall, ...] = ()
        """Calls of the last turn that have no answer yet."""
        self._calls = 0
        for index, item in enumerate(history):
            if item.parsed is not None:
                messages, self._turn, self._unanswered, self._calls = item.parsed
                self._messages += messages
                continue
            before = len(self._messages)
            self._add(item.value, f"contents[{index}]")
            item.parsed = self._messages[before:], self._turn, self._unanswered, self._calls

    @property
    def ends_with_model(self) -> bool:
        return self._turn is not None

    def messages(self) -> list[Message]:
        self._end_turn()
        return self._messages

    def _add(self, raw: Any, where: str) -> None:
        content = camel_fields(raw, where)
        role: Any = content.get("role") or "user"
        raw_parts = enumerate(_raw_parts(content, where))
        parts = [(_part(part, f"{where}.parts[{i}]"), f"{where}.parts[{i}]") for i, part in raw_parts]
        if role == "model":
            self._add_model(parts)
        elif role in _USER_ROLES:
            self._add_user(parts)
        else:
            raise read.bad(f"unknown role {str(role)[:40]!r}: use user or model", f"{where}.role")

    def _add_model(self, parts: list[tuple[dict[str, Any], str]]) -> None:
        """Consecutive contents of the model are one turn: a harness may keep a streamed reply chunk by chunk."""
        texts, thoughts, calls = list[str](), list[str](), list[ToolCall]()
        for part, where in parts:
            match _kinds(part):
                case ["functionCall"]:
                    calls.append(_call(part["functionCall"], f"{where}.functionCall", f"call_{self._calls}"))
                    self._calls += 1
                case ["text"] | []:
                    kept = thoughts if part.get("thought") is True else texts
                    kept.append(read.text(part.get("text"), f"{where}.text"))
                case kinds:
                    raise read.bad(f"a content of the model cannot contain {' and '.join(kinds)}", where)
        part_of_turn = read.AssistantTurn(tuple(texts), tuple(thoughts), tuple(calls))
        self._turn = part_of_turn if self._turn is None else self._turn.plus(part_of_turn)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._unanswered = self._turn.calls
            self._turn = None

    def _add_user(self, parts: list[tuple[dict[str, Any], str]]) -> None:
        """Answers of tools come first, as models expect, then the rest as one message."""
        self._end_turn()
        content = read.Content()
        before = len(self._messages)
        for part, where in parts:
            match _kinds(part):
                case ["functionResponse"]:
                    self._messages.append(self._answer(part["functionResponse"], f"{where}.functionResponse"))
                case ["inlineData"]:
                    content.add_image(_image(part["inlineData"], f"{where}.inlineData"))
                case ["text"] | []:
                    content.add_text(read.text(part.get("text"), f"{where}.text"))
                case kinds:
                    raise read.bad(f"a content of the user cannot contain {' and '.join(kinds)}", where)
        if content.text or content.images or len(self._messages) == before:
            self._messages.append(content.message("user"))

    def _answer(self, raw: Any, where: str) -> Message:
        response = camel_fields(raw, where)
        call_id = read.text(response.get("id"), f"{where}.id")
        function = read.text(response.get("name"), f"{where}.name")
        content = read.Content()
        text, is_error = response_text(read.mapping(response.get("response"), f"{where}.response"))
        content.add_text(text)
        for index, part in enumerate(one_or_list(response.get("parts"), f"{where}.parts")):
            place = f"{where}.parts[{index}]"
            content.add_image(_image(_part(part, place).get("inlineData"), f"{place}.inlineData"))
        return content.message("tool", self._answered(call_id, function), is_error=is_error)

    def _answered(self, call_id: str, function: str) -> str:
        """The id of the call that an answer belongs to. Each call is answered once."""
        by_id = [call for call in self._unanswered if call_id and _has_id(call, call_id)]
        by_name = [call for call in self._unanswered if call.name == function]
        for answered in (*by_id, *by_name):
            self._unanswered = tuple(call for call in self._unanswered if call is not answered)
            return answered.call_id
        return call_id


def response_text(response: dict[str, Any]) -> tuple[str, bool]:
    """The text of a function's response, and whether it is an error.

    The provider requires an object, so harnesses wrap plain text: a string as the only field `output`, `result` or
    `error` is that text. Any other object is written as JSON.
    """
    if not response:
        return "", False
    is_error = list(response) == ["error"]
    value = next(iter(response.values()))
    if isinstance(value, str) and list(response) in (["output"], ["result"], ["error"]):
        return value, is_error
    return orjson.dumps(response).decode(), is_error


def _call(raw: Any, where: str, default_id: str) -> ToolCall:
    call = camel_fields(raw, where)
    return ToolCall(
        name=read.name(call.get("name"), f"{where}.name"),
        arguments=read.arguments_text(read.mapping(call.get("args"), f"{where}.args")),
        call_id=read.text(call.get("id"), f"{where}.id") or default_id,
    )


def _has_id(call: ToolCall, call_id: str) -> bool:
    """Also if a harness has put the function's name in front of either id."""
    prefix = f"{call.name}__"
    return call_id in (call.call_id, prefix + call.call_id) or prefix + call_id == call.call_id


def _raw_parts(content: dict[str, Any], where: str) -> list[Any]:
    if "parts" not in content and "text" in content:
        return [content]
    return one_or_list(content.get("parts"), f"{where}.parts")


def _part(raw: Any, where: str) -> dict[str, Any]:
    """The fields of a part. One without content counts as an empty text."""
    part = camel_fields(raw, where)
    for kind in REFUSED_PARTS:
        if part.get(kind) is not None:
            raise read.bad(f"{kind} is not supported", f"{where}.{kind}")
    unknown = [key for key, value in part.items() if value is not None and key not in _METADATA]
    if unknown and not _kinds(part):
        raise read.bad(f"unknown kind of part {unknown[0][:40]!r}", where)
    return part


def _kinds(part: dict[str, Any]) -> list[str]:
    return [kind for kind in _KINDS if part.get(kind) is not None]


def _image(raw: Any, where: str) -> str:
    """A `data:` URL. The provider accepts both alphabets of base64; URLs need the standard one."""
    blob = camel_fields(raw, where)
    mime = read.text(blob.get("mimeType"), f"{where}.mimeType")
    data = read.name(blob.get("data"), f"{where}.data")
    if not mime.startswith("image/"):
        raise read.bad(f"{where} must be an image, not {mime[:40]!r}", f"{where}.mimeType")
    standard = data.translate(_TO_STANDARD_BASE64).rstrip("=")
    return f"data:{mime};base64,{standard}{'=' * (-len(standard) % 4)}"
