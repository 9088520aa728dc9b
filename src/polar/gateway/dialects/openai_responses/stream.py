"""A streamed reply of the Responses API: numbered events that open, fill and close one item after the other."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.base import BrokenStream, ChatRequest, Reply
from polar.gateway.dialects.openai_chat.errors import openai_message
from polar.gateway.dialects.openai_responses.reply import OutputWriter, TextKind, summary_part, text_part
from polar.gateway.dialects.problems import Overflow, Problem
from polar.sse import named_event
from polar.types import Delta, ToolCall

_CALL_EVENTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


class ResponsesStream:
    def __init__(self, request: ChatRequest, reply: Reply) -> None:
        self._writer = OutputWriter(request, reply)
        self._sequence = 0
        self._index = -1
        """Of the latest item."""
        self._item: dict[str, Any] = {}
        """The latest item as it was announced."""
        self._open: TextKind | None = None
        """Kind of the latest item if it is a text that may still grow."""
        self._texts: list[str] = []
        self._only_reasoning = True

    def start(self) -> bytes:
        return self._event("response.created", response=self._in_progress()) + self.heartbeat()

    def heartbeat(self) -> bytes:
        return self._event("response.in_progress", response=self._in_progress())

    def delta(self, delta: Delta) -> bytes:
        if delta.tool_call is not None:
            return self._close() + self._call(delta.tool_call)
        text = delta.reasoning or delta.content
        if not text:
            return b""
        kind: TextKind = "reasoning" if delta.reasoning else "content"
        before = b"" if kind == self._open else self._close() + self._begin(kind)
        self._texts.append(text)
        if kind == "reasoning":
            return before + self._part("response.reasoning_summary_text.delta", delta=text)
        return before + self._part("response.output_text.delta", delta=text, logprobs=[])

    def end(self, reply: Reply) -> bytes:
        last = self._close()
        if self._only_reasoning:
            last += self._begin("content") + self._close()
        return last + self._event("response.completed", response=self._writer.completed(reply))

    def broken(self, problem: Problem) -> BrokenStream:
        """A retryable problem cuts the connection without an event: every harness retries then; some give up at
        `response.failed`. A final problem ends the body normally: harnesses act on the failure only then."""
        if problem.retry:
            return BrokenStream(b"", clean=False)
        # Harnesses stop at these two codes and retry after most others.
        code = problem.code if isinstance(problem, Overflow) else "invalid_prompt"
        error = {"code": code, "message": openai_message(problem)}
        response = {**self._writer.response("failed", []), "error": error}
        return BrokenStream(self._event("response.failed", response=response), clean=True)

    def _begin(self, kind: TextKind) -> bytes:
        added = self._added(self._writer.text(self._index + 1, kind, None))
        self._open, self._texts = kind, []
        if kind == "reasoning":
            return added + self._part("response.reasoning_summary_part.added", part=summary_part(""))
        return added + self._part("response.content_part.added", part=text_part(""))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        kind, text = self._open, "".join(self._texts)
        self._open = None
        if kind == "reasoning":
            filled = self._part("response.reasoning_summary_text.done", text=text)
            filled += self._part("response.reasoning_summary_part.done", part=summary_part(text))
        else:
            filled = self._part("response.output_text.done", text=text, logprobs=[])
            filled += self._part("response.content_part.done", part=text_part(text))
        return filled + self._done(self._writer.text(self._index, kind, text))

    def _call(self, call: ToolCall) -> bytes:
        """A call is sent whole: before its end it cannot be told from text."""
        written = self._added(self._writer.call(self._index + 1, call, whole=False))
        whole = self._writer.call(self._index, call, whole=True)
        if whole["type"] in _CALL_EVENTS:
            event, field = _CALL_EVENTS[whole["type"]]
            done = {"name": whole["name"], field: whole[field]} if field == "arguments" else {field: whole[field]}
            if whole[field]:
                written += self._of_item(f"{event}.delta", delta=whole[field])
            written += self._of_item(f"{event}.done", **done)
        return written + self._done(whole)

    def _added(self, item: dict[str, Any]) -> bytes:
        self._index += 1
        self._item = item
        self._only_reasoning = self._only_reasoning and item["type"] == "reasoning"
        return self._event("response.output_item.added", output_index=self._index, item=item)

    def _done(self, item: dict[str, Any]) -> bytes:
        return self._event("response.output_item.done", output_index=self._index, item=item)

    def _part(self, kind: str, **values: Any) -> bytes:
        """An event of the open item's only part."""
        place = "summary_index" if self._item["type"] == "reasoning" else "content_index"
        return self._of_item(kind, **{place: 0}, **values)

    def _of_item(self, kind: str, **values: Any) -> bytes:
        return self._event(kind, item_id=self._item["id"], output_index=self._index, **values)

    def _event(self, kind: str, **values: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._sequence, **values}
        self._sequence += 1
        return named_event(payload)

    def _in_progress(self) -> dict[str, Any]:
        return self._writer.response("in_progress", [])
