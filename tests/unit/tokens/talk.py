"""A conversation at token level: what a harness would send, and what an engine would have sampled for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from polar.tokens.base import Renderer
from polar.tokens.forest import CallForest, Prompt, PromptBuilder
from polar.types import Call, CallTimes, Matching, Message, TokenIds, Tool, logprobs, token_ids


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str, reasoning: str = "") -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning)


def tool_result(text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id="call_1")


class Talk:
    """Asks a forest for prompts and answers them with given ids."""

    def __init__(self, renderer: Renderer, tools: tuple[Tool, ...] = (), matching: Matching | None = None) -> None:
        self.renderer = renderer
        self.tools = tools
        self.forest = CallForest(matching)
        self.prompts = PromptBuilder(self.forest, renderer)
        self.calls: list[Call] = []
        self.full: dict[str, TokenIds] = {}
        """Prompt and completion of each call, as the engine saw them."""

    def ask(self, messages: Sequence[Message]) -> Prompt:
        return self.prompts.prepare(messages, self.tools)

    def answer(self, prompt: Prompt, completion: Sequence[int], finish: str = "stop", **fields: Any) -> Call:
        """Keeps the call as the gateway would. `fields`: in place of the defaults."""
        ids = token_ids(completion)
        number = len(self.full) + 1
        given: dict[str, Any] = {
            "logprobs": logprobs([-1.0] * len(ids)),
            "tools": self.tools,
            "new_items": (),
            "sampling": {},
            **fields,
        }
        call = Call(
            call_id=f"c{number}",
            session_id="s",
            parent_id=prompt.parent_id,
            continues=prompt.continues,
            new_prompt_ids=prompt.new_prompt_ids,
            completion_ids=ids,
            prompt_digest=prompt.prompt_digest,
            prompt_tokens=len(prompt.prompt_ids),
            finish_reason=finish,  # pyright: ignore[reportArgumentType]
            new_messages=prompt.new_messages,
            response=_named(self.renderer.parse(prompt.prompt_ids, ids), f"call_{number}"),
            dialect="test",
            kind="agent",
            engine="test",
            logprob_mode="raw",
            times=CallTimes(0, 0, 0),
            break_reason=prompt.break_reason,
            tolerant=prompt.tolerant,
            **given,
        )
        self.forest.add(call)
        self.calls.append(call)
        self.full[call.call_id] = prompt.prompt_ids + ids
        return call

    def say(self, messages: Sequence[Message], completion: Sequence[int]) -> Call:
        return self.answer(self.ask(messages), completion)


def _named(reply: Message, call_id: str) -> Message:
    """Tool calls get ids as at the gateway."""
    calls = [replace(call, call_id=f"{call_id}_{index}") for index, call in enumerate(reply.tool_calls)]
    return replace(reply, tool_calls=tuple(calls))
