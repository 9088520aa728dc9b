"""A session as a chain of model calls, and the chain as the output of a Responses API reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from polar.trainers.bridges.sessions import SessionTraces
from polar.types import Call, Message


class ChainLink(NamedTuple):
    """One model call of the main trace, of which all tokens may be trained on."""

    call_id: str
    prompt_ids: list[int]
    generation_ids: list[int]
    logprobs: list[float]


def chain_of(session: SessionTraces) -> list[ChainLink]:
    """The main trace, call by call. NeMo RL trains on everything that was generated, so a call with tokens that
    may not be trained on is no link: its tokens are context in the prompt of the next."""
    if not session.traces:
        return []
    trace = session.main.trace
    ids, prompt = trace.response_ids.tolist(), trace.prompt_ids.tolist()
    return [
        ChainLink(
            span.call_id,
            [*prompt, *ids[: span.start]],
            ids[span.start : span.start + span.length],
            trace.logprobs[span.start : span.start + span.length].tolist(),
        )
        for span in trace.spans
        if span.length and all(trace.loss_mask[span.start : span.start + span.length])
    ]


def placeholder_of(calls: Mapping[str, Call], max_tokens: int | None) -> list[ChainLink]:
    """One sampled token, for a run that counts and of which nothing may be trained on. Its answer is masked.

    NeMo RL refuses a run without generated tokens, and compares runs whose first prompts are equal. So the token
    stands after the prompt of the agent's first call."""
    sampled = sorted((call for call in calls.values() if call.completion_ids), key=lambda it: it.kind != "agent")
    room = None if max_tokens is None else max_tokens - 1
    return [
        ChainLink(
            call.call_id,
            call.new_prompt_ids[:room].tolist(),
            call.completion_ids[:1].tolist(),
            [value if math.isfinite(value := call.logprobs[0]) else 0.0],
        )
        for call in islice(sampled, 1)
    ]


def output_of(chain: Sequence[ChainLink], calls: Mapping[str, Call]) -> list[dict[str, Any]]:
    """The output items of a Responses API reply. Token fields stand on the last item of each call."""
    items: list[dict[str, Any]] = []
    for number, link in enumerate(chain):
        call = calls[link.call_id]
        if number:
            items += [_result(message) for message in call.new_messages if message.role == "tool"]
        said = reply_items(call)
        said[-1] |= {
            "prompt_token_ids": link.prompt_ids,
            "generation_token_ids": link.generation_ids,
            "generation_log_probs": link.logprobs,
        }
        items += said
    return items


def reply_items(call: Call) -> list[dict[str, Any]]:
    """A reply as items of the Responses API; an empty one is a message without text."""
    reply = call.response
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"id": f"rs_{call.call_id}", "type": "reasoning", "summary": summary})
    if reply.content or not reply.tool_calls:
        text: dict[str, Any] = {"type": "output_text", "text": reply.content, "annotations": []}
        message = {"id": f"msg_{call.call_id}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [text]})
    items += [
        {
            "id": f"fc_{call.call_id}_{number}",
            "type": "function_call",
            "call_id": made.call_id,
            "name": made.name,
            "arguments": made.arguments,
            "status": "completed",
        }
        for number, made in enumerate(reply.tool_calls)
    ]
    return items


def _result(message: Message) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
