"""Finds traces that repeat earlier ones: the same token ids, or the same conversation in words."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import orjson

from polar.data.export.chat import conversation_of, openai_messages, openai_tools
from polar.data.export.plan import ExportedSession
from polar.types import Call, Trace

SAME_TOKENS = "same_tokens"
SAME_TEXT = "same_text"


class Duplicates:
    """Of the sessions that `add` was called with, in this order: the first of equal traces stays."""

    def __init__(self) -> None:
        self.repeated: set[tuple[str, int]] = set()
        """Session id, and the trace's number in the trajectory."""
        self.reasons = Counter[str]()
        self.fresh: set[str] = set()
        """Ids of the sessions with at least one trace that repeats none."""
        self._seen: set[bytes] = set()

    def add(self, session: ExportedSession) -> None:
        calls = {call.call_id: call for call in session.calls}
        for number, trace in enumerate(session.trajectory.traces if session.trajectory else ()):
            tokens, text = _digest_of_tokens(trace), _digest_of_text(trace, calls)
            reason = SAME_TOKENS if tokens in self._seen else SAME_TEXT if text in self._seen else ""
            if reason:
                self.repeated.add((session.result.session_id, number))
                self.reasons[reason] += 1
            else:
                self.fresh.add(session.result.session_id)
            self._seen |= {tokens, text}


def _digest_of_tokens(trace: Trace) -> bytes:
    """Of what a row of `tokens` has: ids, and which of them have a label."""
    whole = hashlib.sha256(b"tokens")
    for part in (trace.prompt_ids[:], trace.response_ids, trace.loss_mask):
        whole.update(len(part).to_bytes(8, "little") + part.tobytes())
    return whole.digest()


def _digest_of_text(trace: Trace, calls: dict[str, Call]) -> bytes:
    conversation = conversation_of(trace, calls)
    messages = [_without_ids(message) for message in openai_messages(conversation)]
    value = {"messages": messages, "tools": openai_tools(conversation.tools)}
    return hashlib.sha256(b"text" + orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).digest()


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """The ids of tool calls are new in every session."""
    made = {name: value for name, value in message.items() if name != "tool_call_id"}
    if "tool_calls" in made:
        made["tool_calls"] = [call["function"] for call in made["tool_calls"]]
    return made
