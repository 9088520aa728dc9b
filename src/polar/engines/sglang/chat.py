"""SGLang's chat route on the wire: what is asked, and a reply as one piece.

It gives ids and logprobs only with a reply that is not streamed, and tells them beside the text, in `meta_info`.
The `weight_version` there is that of the end, and so no version of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from polar.engines.base import ChatPiece, ChatPrompt, Piece
from polar.engines.remote.chat_protocol import CHAT, WireMessage, chat_body, whole_deltas
from polar.engines.remote.server import RemoteServer
from polar.engines.sglang.protocol import FINISH, Event, FinishReason, Meta, Progress
from polar.errors import EngineDefect
from polar.types import logprobs, token_ids

DETOKENIZE = "/detokenize"
MAX_SEED = 0x7FFFFFFF
PROMPT_TOKENS = re.compile(r"(\d+) tokens from the input|input(?: length)? \((\d+) tokens\)|input_len=(\d+)", re.I)
"""Where a refusal for want of room tells the length of the prompt."""


class ChatChoice(msgspec.Struct, frozen=True):
    message: WireMessage
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    """From 0.5.17; the logprobs of `meta_info` name the same ids before."""
    meta_info: Meta | None = None
    matched_stop: int | str | None = None


class ChatUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class ChatReply(msgspec.Struct, frozen=True):
    choices: list[ChatChoice]
    usage: ChatUsage


class Detokenized(msgspec.Struct, frozen=True):
    text: str


def conversation_body(
    conversation: ChatPrompt, template_options: Mapping[str, Any], request_id: str
) -> dict[str, Any]:
    body: dict[str, Any] = {
        **chat_body(conversation),
        "separate_reasoning": True,
        "return_prompt_token_ids": True,
        "return_token_ids": True,
        "return_meta_info": True,
        "chat_template_kwargs": dict(template_options),
        "rid": request_id,
        "stream": False,
    }
    if conversation.seed is not None:
        body["seed"] = conversation.seed & MAX_SEED
    return body


def count_body(conversation: ChatPrompt, template_options: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang does not count conversations; a reply of one token tells how long its prompt was."""
    shortest = msgspec.structs.replace(conversation, max_tokens=1, stop=(), json_schema=None)
    body = {**chat_body(shortest), "chat_template_kwargs": dict(template_options), "stream": False}
    return {name: value for name, value in body.items() if name not in ("logprobs", "top_logprobs")}


def prompt_tokens_in(reason: str) -> int | None:
    found = PROMPT_TOKENS.search(reason)
    return int(next(filter(None, found.groups()))) if found else None


def conversation_piece(server: RemoteServer, reply: ChatReply) -> ChatPiece:
    choice = reply.choices[0] if reply.choices else ChatChoice(WireMessage())
    meta = choice.meta_info
    if meta is None or not choice.prompt_token_ids:
        raise EngineDefect(
            f"SGLang at {server.url} gave no `meta_info` or no `prompt_token_ids` with a reply: use 0.5.13 or "
            "newer, and a worker, not a router that rewrites its answers"
        )
    finish = meta.finish_reason or FinishReason("abort")
    if finish.type == "abort" and finish.status_code is not None:
        raise server.fault(CHAT, {"message": finish.message, "code": finish.status_code})
    ids, values = Progress().new(Event(meta, choice.token_ids or []))
    piece = Piece(
        ids=token_ids(ids),
        logprobs=logprobs(values),
        finish_reason=FINISH[finish.type],
        evaluated_tokens=meta.evaluated_tokens,
        policy_spans=meta.policy_spans,
    )
    stopped_by = choice.matched_stop if isinstance(choice.matched_stop, str) else ""
    deltas = whole_deltas(choice.message, cut=piece.finish_reason != "stop")
    return ChatPiece(piece, deltas, token_ids(choice.prompt_token_ids), stopped_by)
