"""What the stub engine says: canned replies, encoded once as vLLM 0.32 writes them, any number of tokens an event.

A reply is text of a real vocabulary, so the ids are real ones and the gateway reads real words. Logprobs are a
function of the id, so that scoring a reply gives the values with which it was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any
from zlib import crc32

import orjson

from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.tokens.replies.reply_text import parse_tool_calls

MODEL = "polar"
MAX_MODEL_LEN = 131_072
TOOL_TAG = "<tool_call>"
DONE = b"data: [DONE]\n\n"


def logprob(token_id: int) -> float:
    return -(token_id * 7919 % 100_003) / 100_003


@dataclass(frozen=True)
class CannedReply:
    """One reply. `ids` end with the stop id; `pieces` are the texts of the ids."""

    text: str
    ids: tuple[int, ...]
    pieces: tuple[str, ...]

    @classmethod
    def of(cls, text: str, vocabulary: Vocabulary, stop_id: int) -> CannedReply:
        ids = vocabulary.encode(text)
        return cls(text, (*ids, stop_id), (*(vocabulary.decode([i]) for i in ids), ""))

    def groups(self, size: int) -> list[tuple[tuple[int, ...], str]]:
        """Ids and text of each event."""
        starts = range(0, len(self.ids), size)
        return [(self.ids[n : n + size], "".join(self.pieces[n : n + size])) for n in starts]


def generate_events(reply: CannedReply, size: int) -> list[bytes]:
    """Of `/inference/v1/generate`, without the usage that ends a stream."""
    groups = reply.groups(size)
    return [
        event({"request_id": "generate-tokens-1", "choices": [_generated(ids, last=n == len(groups))]})
        for n, (ids, _) in enumerate(groups, 1)
    ]


def _generated(ids: tuple[int, ...], *, last: bool) -> dict[str, Any]:
    named: list[dict[str, Any]] = [
        {"token_id": i, "logprob": logprob(i), "rank": 1, "top_logprobs": []} for i in ids
    ]
    choice: dict[str, Any] = {"index": 0, "logprobs": {"content": named}, "token_ids": ids}
    return {**choice, "finish_reason": "stop" if last else None}


def completion_events(reply: CannedReply, size: int) -> list[bytes]:
    """Of `/v1/completions`."""
    groups = reply.groups(size)
    return [
        event({**_head("cmpl-1", "text_completion"), "choices": [_completed(ids, text, last=n == len(groups))]})
        for n, (ids, text) in enumerate(groups, 1)
    ]


def _completed(ids: tuple[int, ...], text: str, *, last: bool) -> dict[str, Any]:
    listed = {
        "text_offset": [0] * len(ids),
        "token_logprobs": [logprob(i) for i in ids],
        "tokens": [f"token_id:{i}" for i in ids],
        "top_logprobs": [None] * len(ids),
    }
    choice = {"index": 0, "text": text, "logprobs": listed, "token_ids": ids}
    return {**choice, "finish_reason": "stop" if last else None, "stop_reason": None}


def chat_events(reply: CannedReply, size: int, *, with_ids: bool) -> list[bytes]:
    """Of `/v1/chat/completions`. The tool call begins with the event after its tag and is spread over the rest."""
    groups = reply.groups(size)
    deltas = _deltas(reply, [text for _, text in groups])
    finish = _finish_reason(reply)
    start = {**_head("chatcmpl-1", "chat.completion.chunk"), "choices": [_chat_choice({"role": "assistant"})]}
    events = [event(start)]
    for n, ((ids, _), delta) in enumerate(zip(groups, deltas, strict=True), 1):
        choice = _chat_choice(delta, finish if n == len(groups) else None)
        if with_ids:
            choice |= {"token_ids": ids, "logprobs": {"content": [_chat_logprob(i) for i in ids]}}
        events.append(event({**_head("chatcmpl-1", "chat.completion.chunk"), "choices": [choice]}))
    return events


def chat_reply(reply: CannedReply, *, with_ids: bool) -> dict[str, Any]:
    """Not streamed; usage and the prompt's ids are the server's to add."""
    message = parse_tool_calls(reply.text)
    calls = [
        {
            "id": f"{_call_id(reply)}{n}",
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments(call)},
        }
        for n, call in enumerate(message.tool_calls, 1)
    ]
    said = {"role": "assistant", "content": message.content.rstrip() or None, "tool_calls": calls}
    choice: dict[str, Any] = {"index": 0, "message": said, "finish_reason": _finish_reason(reply)}
    if with_ids:
        choice |= {"token_ids": reply.ids, "logprobs": {"content": [_chat_logprob(i) for i in reply.ids]}}
    return {**_head("chatcmpl-1", "chat.completion"), "choices": [choice]}


def _deltas(reply: CannedReply, texts: list[str]) -> list[dict[str, Any]]:
    message = parse_tool_calls(reply.text)
    if not message.tool_calls:
        return [{"content": text} for text in texts]
    starts = _offsets(texts)
    tag = reply.text.index(TOOL_TAG)
    said = [{"content": text[: tag - at]} for text, at in zip(texts, starts, strict=True) if at < tag]
    call = message.tool_calls[0]
    head = {
        "index": 0,
        "id": f"{_call_id(reply)}1",
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    events = len(texts) - len(said)
    return [*said, *_call_deltas(head, _arguments(call), events)]


def _call_deltas(head: dict[str, Any], arguments: str, events: int) -> list[dict[str, Any]]:
    """The name with the first event, the arguments evenly over the others."""
    if events == 1:
        head["function"]["arguments"] = arguments
        return [{"tool_calls": [head]}]
    cuts = [len(arguments) * n // (events - 1) for n in range(events)]
    parts = [arguments[begin:end] for begin, end in pairwise(cuts)]
    later = [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in parts]
    return [{"tool_calls": [head]}, *later]


def _call_id(reply: CannedReply) -> str:
    """Another one for another reply: harnesses take two calls by one id for the same."""
    return f"call_{crc32(reply.text.encode()):08x}_"


def _offsets(texts: list[str]) -> list[int]:
    return [0, *accumulate(map(len, texts))][:-1]


def _arguments(call: Any) -> str:
    value = call.arguments
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _chat_choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _chat_logprob(token_id: int) -> dict[str, Any]:
    return {"token": f"token_id:{token_id}", "logprob": logprob(token_id), "bytes": None, "top_logprobs": []}


def _finish_reason(reply: CannedReply) -> str:
    return "tool_calls" if TOOL_TAG in reply.text else "stop"


def _head(id: str, kind: str) -> dict[str, Any]:
    return {"id": id, "object": kind, "created": 1_700_000_000, "model": MODEL}


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
