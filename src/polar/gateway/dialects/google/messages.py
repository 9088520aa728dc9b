"""Google's contents and parts read into the canonical conversation.

Contents know two speakers. What tools answer stands among the user's parts, bound to its call by an id that may be
missing or renamed on the way: then by the function's name and the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, cast

import orjson

from polar.gateway.dialects.base import HistoryItem
from polar.gateway.dialects.fields import Content, arguments_text, bad, camel, items, name, text
from polar.types import Message, ToolCall

REFUSED_PARTS = ("fileData", "executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""What only Google's own servers can fetch or have run."""

_SAID = ("text", "inlineData", "functionCall", "functionResponse")
_ABOUT_A_PART = frozenset(
    ("thought", "thoughtSignature", "partMetadata", "videoMetadata", "mediaResolution", "mediaProcessing")
)
"""Fields that say nothing by themselves."""

_USERS = ("user", "function", "tool")
_TO_STANDARD_BASE64 = str.maketrans("-_", "+/")


def spelled(value: Any, where: str) -> dict[str, Any]:
    """An object with its fields spelled in one way; null has none."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad(f"{where} must be an object", where)
    return {camel(key): item for key, item in cast("dict[str, Any]", value).items()}


def several(value: Any, where: str) -> list[Any]:
    """A list, or the one item it would hold: the provider takes both."""
    return [value] if isinstance(value, dict) else items(value, where)


def system_text(value: Any) -> str:
    """A text, a content, a part or a list of parts."""
    where = "systemInstruction"
    if isinstance(value, str):
        return value
    parts = cast("list[Any]", value) if isinstance(value, list) else _parts(spelled(value, where), where)
    texts: list[str] = []
    for index, raw in enumerate(parts):
        place = f"{where}.parts[{index}]"
        part = {"text": raw} if isinstance(raw, str) else _part(raw, place)
        if _kinds(part) not in ([], ["text"]):
            raise bad("systemInstruction takes text only", place)
        texts.append(text(part.get("text"), f"{place}.text"))
    return "".join(texts)


def _parts(content: dict[str, Any], where: str) -> list[Any]:
    if "parts" not in content and "text" in content:
        return [content]
    return several(content.get("parts"), f"{where}.parts")


class Step(NamedTuple):
    """What one content made, and how the conversation stood after it."""

    messages: tuple[Message, ...]
    open: tuple[ToolCall, ...]
    turn: _ModelTurn | None
    calls: int


class Conversation:
    """Contents in the order they come, and the messages they make."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._open: list[ToolCall] = []
        """The last turn's calls that wait for their answer."""
        self._turn: _ModelTurn | None = None
        self._calls = 0

    def read(self, history: Sequence[HistoryItem]) -> None:
        """The contents of a request. Those known from an earlier one are not read again."""
        known: Step | None = None
        for index, item in enumerate(history):
            if item.made is not None:
                known = item.made
                self._messages += item.made.messages
                continue
            if known is not None:
                self._resume(known)
                known = None
            before = len(self._messages)
            self.add(item.value, f"contents[{index}]")
            item.made = self._step(before)
        if known is not None:
            self._resume(known)

    def _step(self, before: int) -> Step:
        turn = copy(self._turn) if self._turn else None
        return Step(tuple(self._messages[before:]), tuple(self._open), turn, self._calls)

    def _resume(self, step: Step) -> None:
        self._open, self._calls = list(step.open), step.calls
        self._turn = copy(step.turn) if step.turn else None

    def add(self, raw: Any, where: str) -> None:
        content = spelled(raw, where)
        role: Any = content.get("role") or "user"
        parts = [
            (_part(part, f"{where}.parts[{index}]"), f"{where}.parts[{index}]")
            for index, part in enumerate(_parts(content, where))
        ]
        if role == "model":
            self._model(parts)
        elif role in _USERS:
            self._user(parts)
        else:
            raise bad(f"unknown role {str(role)[:40]!r}: user or model", f"{where}.role")

    @property
    def ends_with_model(self) -> bool:
        return self._turn is not None

    def messages(self) -> list[Message]:
        self._close_turn()
        return self._messages

    def _model(self, parts: list[tuple[dict[str, Any], str]]) -> None:
        """Contents of the model in a row are one turn: a harness may keep a streamed reply chunk by chunk."""
        if self._turn is None:
            self._turn = _ModelTurn()
        for part, where in parts:
            call = self._turn.add(part, where, f"call_{self._calls}")
            self._calls += call

    def _close_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._open = self._turn.calls
            self._turn = None

    def _user(self, parts: list[tuple[dict[str, Any], str]]) -> None:
        """Answers come first, as models expect them, then what the user says beside them."""
        self._close_turn()
        said = Content()
        answers = 0
        for part, where in parts:
            match _kinds(part):
                case ["functionResponse"]:
                    self._messages.append(self._answer(part["functionResponse"], f"{where}.functionResponse"))
                    answers += 1
                case ["inlineData"]:
                    said.add_image(_image(part["inlineData"], f"{where}.inlineData"))
                case ["text"] | []:
                    said.add_text(text(part.get("text"), f"{where}.text"))
                case kinds:
                    raise bad(f"{' and '.join(kinds)} cannot be a part of what the user says", where)
        if said.text or said.images or not answers:
            self._messages.append(Message(role="user", content=said.text, images=said.images))

    def _answer(self, raw: Any, where: str) -> Message:
        response = spelled(raw, where)
        call_id = text(response.get("id"), f"{where}.id")
        function = text(response.get("name"), f"{where}.name")
        said = Content()
        words, is_error = response_text(response.get("response"), f"{where}.response")
        said.add_text(words)
        for index, part in enumerate(several(response.get("parts"), f"{where}.parts")):
            place = f"{where}.parts[{index}]"
            said.add_image(_image(_part(part, place).get("inlineData"), f"{place}.inlineData"))
        return Message(
            role="tool",
            content=said.text,
            images=said.images,
            tool_call_id=self._answered(call_id, function),
            is_error=is_error,
        )

    def _answered(self, call_id: str, function: str) -> str:
        """The id of the call that an answer belongs to; each call is answered once."""
        by_id = [call for call in self._open if call_id and _is_meant(call, call_id)]
        by_name = [call for call in self._open if call.name == function]
        for call in (*by_id, *by_name):
            self._open.remove(call)
            return call.call_id
        return call_id


class _ModelTurn:
    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    def __copy__(self) -> _ModelTurn:
        turn = _ModelTurn()
        turn.calls, turn._texts, turn._thoughts = [*self.calls], [*self._texts], [*self._thoughts]
        return turn

    def add(self, part: dict[str, Any], where: str, made_up_id: str) -> bool:
        """Whether the part was a call."""
        match _kinds(part):
            case ["functionCall"]:
                self.calls.append(_call(part["functionCall"], f"{where}.functionCall", made_up_id))
                return True
            case ["text"] | []:
                kept = self._thoughts if part.get("thought") is True else self._texts
                kept.append(text(part.get("text"), f"{where}.text"))
                return False
            case kinds:
                raise bad(f"{' and '.join(kinds)} cannot be a part of what the model says", where)

    def message(self) -> Message:
        return Message(
            role="assistant",
            content="".join(self._texts),
            reasoning="".join(self._thoughts),
            tool_calls=tuple(self.calls),
        )


def response_text(response: Any, where: str) -> tuple[str, bool]:
    """What the model reads of a function's response, and whether it is an error.

    Harnesses wrap plain text, because the provider wants an object: `output`, `result` or `error` alone, with a
    text in it, is that text. Every other object is its JSON.
    """
    if response is None or response == {}:
        return "", False
    if not isinstance(response, dict):
        raise bad(f"{where} must be an object", where)
    answer = cast("dict[str, Any]", response)
    is_error = list(answer) == ["error"]
    value: Any = next(iter(answer.values()))
    if isinstance(value, str) and list(answer) in (["output"], ["result"], ["error"]):
        return value, is_error
    return orjson.dumps(answer).decode(), is_error


def _call(raw: Any, where: str, made_up_id: str) -> ToolCall:
    call = spelled(raw, where)
    arguments: Any = call.get("args")
    if arguments is not None and not isinstance(arguments, dict):
        raise bad(f"{where}.args must be an object", f"{where}.args")
    return ToolCall(
        name=name(call.get("name"), f"{where}.name"),
        arguments=arguments_text(cast("Any", {} if arguments is None else arguments)),
        call_id=text(call.get("id"), f"{where}.id") or made_up_id,
    )


def _is_meant(call: ToolCall, call_id: str) -> bool:
    """By its id, also where a harness has put the function's name in front of one of the two."""
    prefix = f"{call.name}__"
    return call_id in (call.call_id, prefix + call.call_id) or prefix + call_id == call.call_id


def _part(raw: Any, where: str) -> dict[str, Any]:
    """A part of a kind that can be read. One that says nothing at all is an empty text."""
    part = spelled(raw, where)
    for kind in REFUSED_PARTS:
        if part.get(kind) is not None:
            raise bad(f"{kind} is not supported", f"{where}.{kind}")
    unknown = [key for key, value in part.items() if value is not None and key not in _ABOUT_A_PART]
    if unknown and not _kinds(part):
        raise bad(f"a part of the unknown kind {unknown[0][:40]!r}", where)
    return part


def _kinds(part: dict[str, Any]) -> list[str]:
    return [kind for kind in _SAID if part.get(kind) is not None]


def _image(raw: Any, where: str) -> str:
    """A `data:` address. The provider takes both alphabets of base64; addresses have the standard one."""
    blob = spelled(raw, where)
    mime = text(blob.get("mimeType"), f"{where}.mimeType")
    data = name(blob.get("data"), f"{where}.data")
    if not mime.startswith("image/"):
        raise bad(f"{where}: images only, not {mime[:40]!r}", f"{where}.mimeType")
    standard = data.translate(_TO_STANDARD_BASE64).rstrip("=")
    return f"data:{mime};base64,{standard}{'=' * (-len(standard) % 4)}"
