"""A session without a gateway: a harness that keeps a bad history, and a model that splits tokens as it likes.

The forest, the renderer, the parser and the builders are the real ones, the tokens those of a real model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from talk import Talk

from polar.builders.drops import PLAIN
from polar.tokens.base import Renderer
from polar.tokens.forest import Prompt
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call, Message, TokenIds, Tool, ToolCall, logprobs, token_ids

TAGS = re.compile("(</?think>|</?tool_call>)")


@dataclass(frozen=True)
class PlannedReply:
    """The parts of a reply, before they are encoded."""

    thought: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class Rollout(Talk):
    """Keeps calls with all that a builder reads."""

    def request(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Prompt:
        return self.prompts.prepare(messages, tools)

    def reply(
        self,
        prompt: Prompt,
        request: tuple[Sequence[Message], tuple[Tool, ...]],
        ids: TokenIds,
        finish: str,
    ) -> Call:
        items = _items(*request)
        shared = self.forest.shared_items(prompt.parent_id, items)
        return self.answer(
            prompt,
            ids,
            finish,
            logprobs=logprobs(-((position * 7 + token_id) % 97) / 50 for position, token_id in enumerate(ids)),
            tools=request[1],
            new_items=items[shared:],
            shared_items=shared,
            sampling=dict(PLAIN),
            received=finish != "aborted",
        )


def _items(messages: Sequence[Message], tools: tuple[Tool, ...]) -> tuple[bytes, ...]:
    whole = [msgspec.json.encode(tools), *map(msgspec.json.encode, messages)]
    return tuple(hashlib.blake2b(item, digest_size=16).digest() for item in whole)


def written(renderer: Renderer, planned: PlannedReply) -> str:
    """In the way of the renderer's family."""
    if isinstance(renderer, SmolLM2Renderer):
        return planned.text + "".join(
            f"<tool_call>{_call(call, 'arguments')}</tool_call>" for call in planned.calls
        )
    if renderer.reader(token_ids()):
        thought = f"<think>\n{planned.thought}\n</think>\n\n" if planned.thought else ""
        calls = [f"<tool_call>\n{_call(call, 'arguments')}\n</tool_call>" for call in planned.calls]
        return thought + "\n".join([planned.text, *calls])
    return _call(planned.calls[0], "parameters") if planned.calls else planned.text


def _call(call: ToolCall, key: str) -> str:
    return f'{{"name": {json.dumps(call.name)}, "{key}": {call.arguments}}}'


def spelled(renderer: Renderer, text: str, lengths: Sequence[int]) -> TokenIds:
    """In pieces of these many characters, over and over: seldom what the tokenizer would make of it. Tags are the
    single tokens they are."""
    ids, turn = token_ids(), 0
    for index, part in enumerate(TAGS.split(text)):
        if index % 2:
            ids.extend(_encode(renderer, part))
            continue
        while part:
            length = lengths[turn % len(lengths)]
            ids.extend(_encode(renderer, part[:length]))
            part, turn = part[length:], turn + 1
    return ids


def _encode(renderer: Any, text: str) -> Sequence[int]:
    """As content, whatever the renderer calls what does it."""
    content = renderer._vocabulary if isinstance(renderer, SmolLM2Renderer) else renderer._tokenizer
    return content.encode(text)
