"""What a chat server does around the toy model: a template before it, and a reading of its text after it.

The model answers "Look into A and B" with a call for each, and thinks first where the template tells it to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from toy_model import END_ID, Asked, Sampled, ToyModel, instance_of

from polar.tokens.renderers.gguf_vocabulary import Vocabulary

CALL = re.compile(r'<tool_call>\n\{"name": "(\w+)", "arguments": (.*?)\}\n</tool_call>')
MARKS = ("<tool_call>", "</think>")
THOUGHTS = "Hm, the file.\n</think>\n"


class TemplateRefusal(Exception):
    """A conversation that the template does not take."""


def rendered(vocabulary: Vocabulary, body: dict[str, Any]) -> list[int]:
    """The prompt."""
    messages = body["messages"]
    if messages[0]["role"] == "assistant":
        raise TemplateRefusal("a conversation begins with its user")
    tools = json.dumps(body.get("tools") or [])
    text = f"<|im_start|>system\n{tools}<|im_end|>\n" if body.get("tools") else ""
    text += "".join(f"<|im_start|>{message['role']}\n{_shown(message)}<|im_end|>\n" for message in messages)
    return vocabulary.encode_layout(text + "<|im_start|>assistant\n" + ("<think>\n" if thinks(body) else ""))


def thinks(body: dict[str, Any]) -> bool:
    return bool(body.get("chat_template_kwargs", {}).get("enable_thinking"))


def _shown(message: dict[str, Any]) -> str:
    thoughts = f"<think>\n{message['reasoning']}\n</think>\n" if message.get("reasoning") else ""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return thoughts + message["content"] + "".join(_call_text(call["name"], call["arguments"]) for call in calls)


def _call_text(name: str, arguments: str) -> str:
    return f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def asked_for(vocabulary: Vocabulary, body: dict[str, Any], prompt: list[int], room: int) -> Asked:
    seed, forced, scripted = body.get("seed"), None, None
    if "response_format" in body:
        text = instance_of(body["response_format"]["json_schema"]["schema"], Random(seed))
        forced = [*vocabulary.encode(text), END_ID]
    elif (text := _script(body)) is not None:
        scripted = [*vocabulary.encode(text), END_ID]
    limit = min(body.get("max_completion_tokens") or room, room)
    return Asked(prompt, limit, body["temperature"], seed, forced=forced, scripted=scripted)


def _script(body: dict[str, Any]) -> str | None:
    paths = body["messages"][-1]["content"].removeprefix("Look into ")
    calls = paths != body["messages"][-1]["content"] and body.get("tools")
    if not calls:
        return THOUGHTS + "Yes." if thinks(body) else None
    texts = [_call_text("look", json.dumps({"path": path}, ensure_ascii=False)) for path in paths.split(" and ")]
    return (THOUGHTS if thinks(body) else "") + "".join(texts)


@dataclass
class ParsedReply:
    """What a text says so far, none of which will change."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def read(text: str, *, thinking: bool, calling: bool, ended: bool) -> ParsedReply:
    if not ended:
        text = _settled(text)
    parsed = ParsedReply()
    if thinking:
        parsed.reasoning, _, text = text.partition("</think>")
    parsed.content, mark, _ = text.partition("<tool_call>")
    if mark and not calling:
        parsed.content = text
    elif mark:
        parsed.calls = CALL.findall(text)
    return parsed


def _settled(text: str) -> str:
    """Without half a character, and without what may become a mark."""
    text = text.rstrip("\ufffd")
    for mark in MARKS:
        for length in range(len(mark) - 1, 0, -1):
            if text.endswith(mark[:length]):
                return text[:-length]
    return text


@dataclass
class Step:
    sampled: Sampled
    parsed: ParsedReply
    """All that is parsed up to here."""
    stop: str | None = None
    """The stop text that ended the reply."""


def steps(vocabulary: Vocabulary, model: ToyModel, body: dict[str, Any], asked: Asked) -> Iterator[Step]:
    ids: list[int] = []
    for sampled in model.reply(asked):
        ids.append(sampled.id)
        text = vocabulary.decode(i for i in ids if i != END_ID)
        stop = next((stop for stop in body["stop"] if stop in text), None)
        if stop is not None:
            text, sampled = text[: text.index(stop)], Sampled(sampled.id, sampled.raw, sampled.processed, "stop")
        elif sampled.finish is None and body["stop"]:
            text = text[: -max(map(len, body["stop"]))]
        parsed = read(text, thinking=thinks(body), calling=bool(body.get("tools")), ended=bool(sampled.finish))
        yield Step(sampled, parsed, stop)
        if sampled.finish:
            return
