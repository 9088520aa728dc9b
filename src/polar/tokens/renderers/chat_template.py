"""The chat template of a model's tokenizer, applied as the publisher's library does.

It renders text, in which user content and template text can no longer be told apart. Family renderers are only
compared with it; a renderer that sends its output escapes the conversation first (`content_encoding.py`).
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

from polar.tokens.json_values import holds_more_values
from polar.types import Message, Tool

SPECIAL = ("bos_token", "eos_token")
MOST_ARGUMENT_VALUES = 2**17
"""Tool-call arguments with more JSON values than this are rejected."""
T = TypeVar("T")


class _Generation(Extension):
    """`{% generation %}` marks the model's text for trainers; the rendered text is the same without it."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def unchanged(value: Any) -> Any:
    return value


class ChatTemplate:
    def __init__(self, source: str, special: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse  # pyright: ignore[reportArgumentType]
        self._template = environment.from_string(source)
        self.source = source
        self.special = special
        """Its names for special tokens, and their spelling."""

    @classmethod
    def load(cls, folder: Path, file: Path | None = None) -> ChatTemplate | None:
        """The folder's template, or that of another file; None if there is none."""
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
        escape: Callable[[Any], Any] = unchanged,
    ) -> str:
        """The conversation up to the model's next turn, with tool calls in the first shape that the template
        shows. Raises what the template raises."""
        given = {"tools": escape(tools), "add_generation_prompt": True, **self.special, **settings}
        refusal: Exception = ValueError("the template shows no tool calls")
        for shape in (_with_objects, _with_texts, _with_calls_alone):
            try:
                shaped: list[dict[str, Any]] = escape(
                    [shape(each) if "tool_calls" in each else each for each in messages]
                )
                mute = [{name: value for name, value in each.items() if name != "tool_calls"} for each in shaped]
                text = self._template.render(messages=shaped, **given)
                if mute == shaped or text != self._template.render(messages=mute, **given):
                    return text
            except (TypeError, ValueError, TemplateError) as error:
                refusal = error
        raise refusal


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """As servers pass them to a chat template, which prints them with this envelope."""
    functions = ({"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools)
    return [{"type": "function", "function": function} for function in functions] or None


def template_message(message: Message) -> dict[str, Any]:
    """As servers pass it to a chat template."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if any(holds_more_values(call.arguments, MOST_ARGUMENT_VALUES) for call in message.tool_calls):
        raise ValueError(f"the arguments of a tool call hold more than {MOST_ARGUMENT_VALUES} values")
    if message.tool_calls:
        fields["tool_calls"] = [
            {"type": "function", "id": c.call_id, "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Most templates take the arguments of tool calls as objects."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _object(arguments: str) -> Any:
    """Text that is no JSON stays text."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """Some take them as text, and recognise a turn with calls by its null content."""
    return {**message, "content": message["content"] or None}


def _with_calls_alone(message: dict[str, Any]) -> dict[str, Any]:
    """Some show either the text of a turn or its calls. Without the calls the next turn makes no sense."""
    return {**message, "content": None}


def calls_one_by_one(
    render: Callable[[Sequence[Message], Sequence[Tool]], T], messages: Sequence[Message], tools: Sequence[Tool]
) -> T:
    """Renders the conversation. If that fails and a turn has several calls, each call gets its own turn, followed
    by its result: some templates allow one call in a turn."""
    try:
        return render(messages, tools)
    except Exception:  # a template may raise anything
        single = list(_single_calls(messages))
        if len(single) == len(messages):
            raise
        return render(single, tools)


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
            turn = message if index == 0 else Message(role="assistant")
            yield msgspec.structs.replace(turn, tool_calls=(call,))
            own = next((each for each in results if each.tool_call_id == call.call_id), None) or next(
                iter(results), None
            )
            if own is not None:
                results.remove(own)
                yield own
        yield from results


def _spelling(token: Any) -> str:
    """A special token is given as text or as an object with the text in it."""
    found: Any = cast("dict[str, Any]", token)["content"] if isinstance(token, dict) else token
    return str(found or "")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
