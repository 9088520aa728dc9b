"""The format of vLLM's chat route: requests, and a stream's events as pieces.

The prompt's ids come with the first event, the ids of the reply with each event. Tokens that vLLM's parsers hold
back come in events without text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from polar.engines.base import ChatPiece, ChatPrompt, Piece
from polar.engines.remote.chat_protocol import CHAT, ReplyMessage, StreamedReply, chat_fields, prompt_fields
from polar.engines.remote.server import RemoteServer
from polar.engines.vllm.protocol import Usage, VllmChoice, last_piece, no_finish_reason, paired
from polar.errors import EngineDefect
from polar.types import TokenIds, logprobs, token_ids

TOKENIZE = "/tokenize"


class VllmChatChoice(VllmChoice, frozen=True):
    delta: ReplyMessage = ReplyMessage()
    stop_reason: int | str | None = None
    """The stop text that ended the reply, or the stop id."""


class VllmChatEvent(msgspec.Struct, frozen=True):
    choices: list[VllmChatChoice] = []
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


class PromptCount(msgspec.Struct, frozen=True):
    count: int


class VllmDetokenizeReply(msgspec.Struct, frozen=True):
    prompt: str


def chat_body(model: str, prompt: ChatPrompt, template_options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        **chat_fields(prompt),
        "seed": prompt.seed,
        "include_stop_str_in_output": False,
        "include_reasoning": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "chat_template_kwargs": dict(template_options),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def count_body(model: str, prompt: ChatPrompt, template_options: Mapping[str, Any]) -> dict[str, Any]:
    options = {"add_generation_prompt": True, "chat_template_kwargs": dict(template_options)}
    return {"model": model, **prompt_fields(prompt), **options}


async def chat_pieces(
    server: RemoteServer, body: Mapping[str, Any], headers: Mapping[str, str]
) -> AsyncGenerator[ChatPiece]:
    prompt_ids: list[int] | None = None
    last: VllmChatChoice | None = None
    usage: Usage | None = None
    reply, count, begun = StreamedReply(), 0, False
    async with aclosing(server.stream(CHAT, body, headers)) as batches:
        async for event in _events(server, batches):
            usage = event.usage or usage
            prompt_ids = prompt_ids or event.prompt_token_ids
            for choice in event.choices:
                if choice.finish_reason is not None:
                    last = choice  # the usage follows it
                    continue
                ids, values = paired(choice)
                deltas = reply.add(choice.delta)
                if ids or deltas:
                    prompt = None if begun else _prompt(server, prompt_ids)
                    count, begun = count + len(ids), True
                    yield ChatPiece(Piece(token_ids(ids), logprobs(values)), deltas, prompt)
    if last is None:
        raise no_finish_reason(server)
    piece = last_piece(last, usage, count)
    _check_count(server, usage, count + len(piece.ids))
    deltas = (*reply.add(last.delta), *reply.end(cut=piece.finish_reason != "stop"))
    stop_text = last.stop_reason if isinstance(last.stop_reason, str) else ""
    yield ChatPiece(piece, deltas, None if begun else _prompt(server, prompt_ids), stop_text)


async def _events(server: RemoteServer, batches: AsyncGenerator[list[bytes]]) -> AsyncGenerator[VllmChatEvent]:
    async for batch in batches:
        for event in server.read_all(batch, CHAT, VllmChatEvent):
            if event.error is not None:
                raise server.fault(CHAT, event.error)
            yield event


def _prompt(server: RemoteServer, ids: list[int] | None) -> TokenIds:
    if not ids:
        raise EngineDefect(
            f"vLLM at {server.url} did not report the ids of the prompt it rendered: use 0.13 or newer, without a "
            "proxy that rewrites its replies"
        )
    return token_ids(ids)


def _check_count(server: RemoteServer, usage: Usage | None, count: int) -> None:
    if usage is not None and usage.completion_tokens not in (None, count):
        raise EngineDefect(
            f"vLLM at {server.url} counts {usage.completion_tokens} sampled tokens and gave {count}; use 0.13 or "
            "newer, whose parsers leave no ids out"
        )
