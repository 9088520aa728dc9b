"""The chat template that comes with a model's tokenizer, applied in the way its publisher's library does.

It lays out text, in which what a user says and what the template says can no longer be told apart. A family's
renderer is only measured against it; whoever sends what it lays out disguises what is said first (`laid_out.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polar.tokens.replies.arguments import too_many_values
from polar.types import Message, Tool

SPECIAL = ("bos_token", "eos_token")
T = TypeVar("T")


class _Generation(Extension):
    """`{% generation %}` tells trainers which text is the model's; what is laid out is the same without it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def as_it_is(said: Any) -> Any:
    return said


class OwnTemplate:
    def __init__(self, source: str, special: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse  # pyright: ignore[reportArgumentType]
        self._template = environment.from_string(source)
        self.source = source
        self.special = special
        """Its names for special tokens, and what they are spelled like."""

    @classmethod
    def found_in(cls, folder: Path, file: Path | None = None) -> OwnTemplate | None:
        """The folder's template, or that of another file; None where it has none."""
        path = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        file = file or folder / "chat_template.jinja"
        source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
        if not isinstance(source, str) or not source:
            return None
        return cls(source, {name: _spelling(config.get(name)) for name in SPECIAL})

    def text(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        settings: dict[str, Any],
        *,
        disguise: Callable[[Any], Any] = as_it_is,
    ) -> str:
        """The conversation as far as the model's next turn, in the first shape of it in which the template shows
        its tool calls. Raises what the template raises."""
        given = {"tools": disguise(tools), "add_generation_prompt": True, **self.special, **settings}
        refusal: Exception = ValueError("it shows no tool calls")
        for shape in (_with_objects, _with_texts, _with_calls_alone):
            try:
                shaped: list[dict[str, Any]] = disguise([shape(message) for message in messages])
                mute = [{name: value for name, value in each.items() if name != "tool_calls"} for each in shaped]
                text = self._template.render(messages=shaped, **given)
                if mute == shaped or text != self._template.render(messages=mute, **given):
                    return text
            except (TypeError, ValueError, TemplateError) as error:
                refusal = error
        raise refusal


def wire_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """In the envelope in which servers hand them to a chat template: templates print it as it is."""
    functions = ({"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools)
    return [{"type": "function", "function": function} for function in functions] or None


def wire_message(message: Message) -> dict[str, Any]:
    """As servers hand it to a chat template."""
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        wire["reasoning_content"] = message.reasoning
    if any(too_many_values(call.arguments) for call in message.tool_calls):
        raise ValueError("the arguments of a tool call hold more values than anything reads")
    if message.tool_calls:
        wire["tool_calls"] = [
            {"type": "function", "id": c.call_id, "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Most templates take the arguments of tool calls as objects."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _object(arguments: str) -> Any:
    """What is no JSON stays the text it is."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """Some take them as text, and know a turn that calls by its content, which is null."""
    return {**message, "content": message["content"] or None} if "tool_calls" in message else message


def _with_calls_alone(message: dict[str, Any]) -> dict[str, Any]:
    """And some show either the text of a turn or its calls. Without the calls the next turn makes no sense."""
    return {**message, "content": None} if "tool_calls" in message else message


def calls_one_by_one(
    lay_out: Callable[[Sequence[Message], Sequence[Tool]], T], messages: Sequence[Message], tools: Sequence[Tool]
) -> T:
    """The conversation as it is laid out; where that is refused and a turn has several calls, with a turn for each
    call and its result behind it: some templates know one call to a turn."""
    try:
        return lay_out(messages, tools)
    except Exception:  # a template raises what it likes
        single = list(_single_calls(messages))
        if len(single) == len(messages):
            raise
        return lay_out(single, tools)


def _single_calls(messages: Sequence[Message]) -> Iterator[Message]:
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        if len(message.tool_calls) < 2:
            yield message
            continue
        results = list(takewhile(lambda each: each.role == "tool", rest))
        del rest[: len(results)]
        for index, call in enumerate(message.tool_calls):
            said = message if index == 0 else Message(role="assistant")
            yield msgspec.structs.replace(said, tool_calls=(call,))
            own = next((each for each in results if each.tool_call_id == call.call_id), None) or next(
                iter(results), None
            )
            if own is not None:
                results.remove(own)
                yield own
        yield from results


def _spelling(token: Any) -> str:
    """A special token is named by its text or by an object with the text in it."""
    found: Any = cast("dict[str, Any]", token)["content"] if isinstance(token, dict) else token
    return str(found or "")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
