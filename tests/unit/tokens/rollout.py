"""A session without a gateway: a harness that keeps a bad history, and a model that splits tokens as it likes.

The forest, the renderer, the parser and the builders are the real ones, the tokens those of a real model.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from polar.builders.drops import PLAIN
from polar.tokens.base import Renderer
from polar.tokens.forest import CallForest, Prompt, PromptBuilder
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call, CallTimes, Message, TokenIds, Tool, ToolCall, logprobs, token_ids

TAGS = re.compile("(</?think>|</?tool_call>)")


@dataclass(frozen=True)
class Said:
    """What a model means to say, before it is spelled."""

    thought: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass
class Rollout:
    renderer: Renderer
    forest: CallForest = field(default_factory=CallForest)
    calls: list[Call] = field(default_factory=list[Call])
    whole: dict[str, TokenIds] = field(default_factory=dict[str, TokenIds])
    """Prompt and completion of each call, as the engine saw them."""

    def ask(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Prompt:
        return PromptBuilder(self.forest, self.renderer).prepare(messages, tools)

    def answer(
        self,
        prompt: Prompt,
        request: tuple[Sequence[Message], tuple[Tool, ...]],
        ids: TokenIds,
        finish: str,
    ) -> Call:
        """Keeps the call as the gateway would."""
        number, items = len(self.calls) + 1, _items(*request)
        shared = self.forest.shared_items(prompt.parent_id, items)
        call = Call(
            call_id=f"c{number}",
            session_id="s",
            parent_id=prompt.parent_id,
            continues=prompt.continues,
            new_prompt_ids=prompt.new_prompt_ids,
            completion_ids=ids,
            logprobs=logprobs(-((position * 7 + token_id) % 97) / 50 for position, token_id in enumerate(ids)),
            prompt_digest=prompt.prompt_digest,
            prompt_tokens=len(prompt.prompt_ids),
            finish_reason=finish,  # pyright: ignore[reportArgumentType]
            new_messages=prompt.new_messages,
            response=self._read(prompt.prompt_ids, ids, number),
            tools=request[1],
            new_items=items[shared:],
            dialect="test",
            kind="agent",
            sampling=dict(PLAIN),
            engine="test",
            logprob_mode="raw",
            times=CallTimes(0, 0, 0),
            shared_items=shared,
            break_reason=prompt.break_reason,
            tolerant=prompt.tolerant,
            received=finish != "aborted",
        )
        self.forest.add(call)
        self.calls.append(call)
        self.whole[call.call_id] = prompt.prompt_ids + ids
        return call

    def _read(self, prompt_ids: TokenIds, ids: TokenIds, number: int) -> Message:
        reply = self.renderer.parse(prompt_ids, ids)
        named = [replace(call, call_id=f"call_{number}_{index}") for index, call in enumerate(reply.tool_calls)]
        return replace(reply, tool_calls=tuple(named))


def _items(messages: Sequence[Message], tools: tuple[Tool, ...]) -> tuple[bytes, ...]:
    whole = [msgspec.json.encode(tools), *map(msgspec.json.encode, messages)]
    return tuple(hashlib.blake2b(item, digest_size=16).digest() for item in whole)


def written(renderer: Renderer, said: Said) -> str:
    """In the way of the renderer's family."""
    if isinstance(renderer, SmolLM2Renderer):
        return said.text + "".join(f"<tool_call>{_call(call, 'arguments')}</tool_call>" for call in said.calls)
    if renderer.reader(token_ids()):
        thought = f"<think>\n{said.thought}\n</think>\n\n" if said.thought else ""
        calls = [f"<tool_call>\n{_call(call, 'arguments')}\n</tool_call>" for call in said.calls]
        return thought + "\n".join([said.text, *calls])
    return _call(said.calls[0], "parameters") if said.calls else said.text


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
