"""The chat template that comes with a model's tokenizer, applied in the way its publisher's library does.

It is what a family's renderer is measured against. Nothing that is sent to an engine is made by it: it lays out
text, in which what a user says and what the template says can no longer be told apart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

SPECIAL = ("bos_token", "eos_token")


class OwnTemplate:
    def __init__(self, source: str, special: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse  # pyright: ignore[reportArgumentType]
        self._template = environment.from_string(source)
        self._special = special

    @classmethod
    def found_in(cls, folder: Path) -> OwnTemplate | None:
        """The folder's template; None where it has none."""
        path = folder / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        file = folder / "chat_template.jinja"
        source = file.read_text() if file.is_file() else config.get("chat_template")
        if not isinstance(source, str) or not source:
            return None
        return cls(source, {name: _spelling(config.get(name)) for name in SPECIAL})

    def text(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, settings: dict[str, Any]
    ) -> str:
        """The conversation as far as the model's next turn, in the first shape of it in which the template shows
        its tool calls. Raises what the template raises."""
        given = {"tools": tools, "add_generation_prompt": True, **self._special, **settings}
        refusal: Exception = ValueError("it shows no tool calls")
        for shape in (_with_objects, _with_texts):
            shaped = [shape(message) for message in messages]
            mute = [{name: value for name, value in each.items() if name != "tool_calls"} for each in shaped]
            try:
                text = self._template.render(messages=shaped, **given)
                if mute == shaped or text != self._template.render(messages=mute, **given):
                    return text
            except (TypeError, ValueError, TemplateError) as error:
                refusal = error
        raise refusal


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """Most templates take the arguments of tool calls as objects."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"] or "{}")}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _with_texts(message: dict[str, Any]) -> dict[str, Any]:
    """Some take them as text, and know a turn that calls by its content, which is null."""
    return {**message, "content": message["content"] or None} if "tool_calls" in message else message


def _spelling(token: Any) -> str:
    """A special token is named by its text or by an object with the text in it."""
    found: Any = cast("dict[str, Any]", token)["content"] if isinstance(token, dict) else token
    return str(found or "")


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
