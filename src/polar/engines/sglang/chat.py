"""The format of SGLang's chat route: requests, and a reply as one piece.

SGLang reports ids and logprobs only for a reply that is not streamed, beside the text in `meta_info`. The
`weight_version` there is that at the end of the reply, so it is not used as the version of its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from polar.engines.base import ChatPiece, ChatPrompt, Piece
from polar.engines.remote.chat_protocol import CHAT, ReplyMessage, chat_fields, whole_deltas
from polar.engines.remote.server import END_REASONS, RemoteServer
from polar.engines.sglang.protocol import MAX_SEED, MetaInfo, ReplyProgress, SglangEvent, SglangFinish
from polar.errors import EngineDefect
from polar.types import logprobs, token_ids

PROMPT_TOKENS = re.compile(r"(\d+) tokens from the input|input(?: length)? \((\d+) tokens\)|input_len=(\d+)", re.I)
"""The length of the prompt in the message of a context overflow."""


class SglangChatChoice(msgspec.Struct, frozen=True):
    message: ReplyMessage
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    """From 0.5.17; before, the ids are only in the logprobs of `meta_info`."""
    meta_info: MetaInfo | None = None
    matched_stop: int | str | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class SglangChatReply(msgspec.Struct, frozen=True):
    choices: list[SglangChatChoice]
    usage: ChatUsage


class SglangDetokenizeReply(msgspec.Struct, frozen=True):
    text: str


def chat_body(prompt: ChatPrompt, template_options: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        **chat_fields(prompt),
        "separate_reasoning": True,
        "return_prompt_token_ids": True,
        "return_token_ids": True,
        "return_meta_info": True,
        "chat_template_kwargs": dict(template_options),
        "rid": request_id,
        "stream": False,
    }
    if prompt.seed is not None:
        body["seed"] = prompt.seed & MAX_SEED
    return body


def count_body(prompt: ChatPrompt, template_options: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang has no route that counts messages; a reply of one token reports the length of its prompt."""
    shortest = msgspec.structs.replace(prompt, max_tokens=1, stop=(), json_schema=None)
    body = {**chat_fields(shortest), "chat_template_kwargs": dict(template_options), "stream": False}
    return {name: value for name, value in body.items() if name not in ("logprobs", "top_logprobs")}


def prompt_tokens_in(reason: str) -> int | None:
    found = PROMPT_TOKENS.search(reason)
    return int(next(filter(None, found.groups()))) if found else None


def chat_piece(server: RemoteServer, reply: SglangChatReply) -> ChatPiece:
    choice = reply.choices[0] if reply.choices else SglangChatChoice(ReplyMessage())
    meta = choice.meta_info
    if meta is None or not choice.prompt_token_ids:
        raise EngineDefect(
            f"a reply of SGLang at {server.url} has no `meta_info` or no `prompt_token_ids`: use 0.5.13 or newer, "
            "and a worker, not a router that rewrites its replies"
        )
    finish = meta.finish_reason or SglangFinish("abort")
    finish.check(server, CHAT)
    ids, values = ReplyProgress().new(SglangEvent(meta, choice.token_ids or []))
    piece = Piece(
        ids=token_ids(ids),
        logprobs=logprobs(values),
        finish_reason=END_REASONS[finish.type],
        evaluated_tokens=meta.evaluated_tokens,
        policy_spans=meta.policy_spans,
    )
    stop_text = choice.matched_stop if isinstance(choice.matched_stop, str) else ""
    deltas = whole_deltas(choice.message, cut=piece.finish_reason != "stop")
    return ChatPiece(piece, deltas, token_ids(choice.prompt_token_ids), stop_text)
