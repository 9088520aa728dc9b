"""vLLM's chat route on the wire: what is asked, and a stream's events as pieces.

The prompt's ids come with the first event, the ids of the reply with their events. Tokens that the parsers hold
back have events of their own, without text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from polar.engines.base import ChatPiece, ChatPrompt, Piece
from polar.engines.remote.chat_protocol import CHAT, StreamedReply, WireMessage, chat_body, prompt_fields
from polar.engines.remote.server import RemoteServer
from polar.engines.vllm.protocol import Choice, Usage, last_piece, paired
from polar.errors import EngineDefect, EngineError
from polar.types import TokenIds, logprobs, token_ids

TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"


class ChatChoice(Choice, frozen=True):
    delta: WireMessage = WireMessage()
    stop_reason: int | str | None = None
    """The stop text that ended the reply, or the id."""


class ChatEvent(msgspec.Struct, frozen=True):
    choices: list[ChatChoice] = []
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


class Counted(msgspec.Struct, frozen=True):
    count: int


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


def conversation_body(model: str, conversation: ChatPrompt, template_options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        **chat_body(conversation),
        "seed": conversation.seed,
        "include_stop_str_in_output": False,
        "include_reasoning": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "chat_template_kwargs": dict(template_options),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def count_body(model: str, conversation: ChatPrompt, template_options: Mapping[str, Any]) -> dict[str, Any]:
    fields = prompt_fields(conversation)
    return {
        "model": model,
        **fields,
        "add_generation_prompt": True,
        "chat_template_kwargs": dict(template_options),
    }


async def conversation_pieces(
    server: RemoteServer, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncGenerator[ChatPiece]:
    prompt_ids: list[int] | None = None
    last: ChatChoice | None = None
    usage: Usage | None = None
    reply, count, told = StreamedReply(), 0, False
    async with aclosing(server.stream(CHAT, body, headers)) as batches:
        async for event in events_of(server, batches):
            usage = event.usage or usage
            prompt_ids = prompt_ids or event.prompt_token_ids
            for choice in event.choices:
                if choice.finish_reason is not None:
                    last = choice  # what it cost is told after it
                    continue
                ids, values = paired(choice)
                deltas = reply.hear(choice.delta)
                if ids or deltas:
                    told_now = None if told else _prompt(server, prompt_ids)
                    count, told = count + len(ids), True
                    yield ChatPiece(Piece(token_ids(ids), logprobs(values)), deltas, told_now)
    if last is None:
        raise EngineError(f"vLLM at {server.url} ended a reply without a reason; see the server's log")
    piece = last_piece(last, usage, count)
    _check_count(server, usage, count + len(piece.ids))
    deltas = (*reply.hear(last.delta), *reply.end(cut=piece.finish_reason != "stop"))
    stopped_by = last.stop_reason if isinstance(last.stop_reason, str) else ""
    yield ChatPiece(piece, deltas, None if told else _prompt(server, prompt_ids), stopped_by)


async def events_of(server: RemoteServer, batches: AsyncGenerator[list[bytes]]) -> AsyncGenerator[ChatEvent]:
    async for batch in batches:
        for event in server.read_all(batch, CHAT, ChatEvent):
            if event.error is not None:
                raise server.fault(CHAT, event.error)
            yield event


def _prompt(server: RemoteServer, ids: list[int] | None) -> TokenIds:
    if not ids:
        raise EngineDefect(
            f"vLLM at {server.url} did not give the ids of the prompt it laid out: use 0.13 or newer, with "
            "nothing between that rewrites its answers"
        )
    return token_ids(ids)


def _check_count(server: RemoteServer, usage: Usage | None, count: int) -> None:
    if usage is not None and usage.completion_tokens not in (None, count):
        raise EngineDefect(
            f"vLLM at {server.url} counts {usage.completion_tokens} sampled tokens and gave {count}; use 0.13 or "
            "newer, whose parsers leave no ids out"
        )
