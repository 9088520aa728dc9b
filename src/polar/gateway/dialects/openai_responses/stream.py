"""A streamed reply of the Responses API: numbered events, and each item opened, filled and closed in turn."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.base import BrokenStream, ChatRequest, Overflow, Problem, Reply, ReplyHead
from polar.gateway.dialects.openai_errors import openai_message
from polar.gateway.dialects.openai_responses.reply import Said, Writer, said_of, summary_part, text_part
from polar.gateway.dialects.sse import named_event
from polar.types import Delta

_CALL_TEXTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


class ResponsesStream:
    def __init__(self, request: ChatRequest, head: ReplyHead) -> None:
        self._writer = Writer(request, head)
        self._sequence = 0
        self._index = -1
        """Of the latest item."""
        self._open: Said | None = None
        self._item: dict[str, Any] = {}
        """The open item as it was announced."""
        self._only_thoughts = True

    def start(self) -> bytes:
        return self._event("response.created", response=self._in_progress()) + self.heartbeat()

    def heartbeat(self) -> bytes:
        return self._event("response.in_progress", response=self._in_progress())

    def delta(self, delta: Delta) -> bytes:
        said = said_of(delta)
        return b"" if said is None else self._say(said)

    def end(self, reply: Reply) -> bytes:
        last = self._close()
        if self._only_thoughts:
            last += self._begin(Said("message")) + self._close()
        return last + self._event("response.completed", response=self._writer.completed(reply))

    def broken(self, problem: Problem) -> BrokenStream:
        """A problem that may pass cuts the connection without a word: every harness asks again after that, and
        some end at a failure. A final one ends whole: harnesses look at the failure once the body has ended."""
        if problem.retry:
            return BrokenStream(b"", clean=False)
        error = {"code": _failure_code(problem), "message": openai_message(problem)}
        response = {**self._writer.response("failed", []), "error": error}
        return BrokenStream(self._event("response.failed", response=response), clean=True)

    def _say(self, said: Said) -> bytes:
        if said.call is not None:
            return self._close() + self._call(said)
        before = b""
        if self._open is None or self._open.kind != said.kind:
            before = self._close() + self._begin(Said(said.kind))
        if self._open is not None:
            self._open.texts += said.texts
        if said.kind == "reasoning":
            return before + self._part("response.reasoning_summary_text.delta", delta=said.text)
        return before + self._part("response.output_text.delta", delta=said.text, logprobs=[])

    def _begin(self, said: Said) -> bytes:
        added = self._add(said)
        self._open = said
        if said.kind == "reasoning":
            return added + self._part("response.reasoning_summary_part.added", part=summary_part(""))
        return added + self._part("response.content_part.added", part=text_part(""))

    def _close(self) -> bytes:
        said = self._open
        if said is None:
            return b""
        if said.kind == "reasoning":
            filled = self._part("response.reasoning_summary_text.done", text=said.text)
            filled += self._part("response.reasoning_summary_part.done", part=summary_part(said.text))
        else:
            filled = self._part("response.output_text.done", text=said.text, logprobs=[])
            filled += self._part("response.content_part.done", part=text_part(said.text))
        self._open = None
        return filled + self._done(said)

    def _call(self, said: Said) -> bytes:
        """A call comes as a whole: the model has finished it before it can be told from text."""
        written = self._add(said)
        whole = self._writer.item(self._index, said)
        if whole["type"] in _CALL_TEXTS:
            event, field = _CALL_TEXTS[whole["type"]]
            done = {"name": whole["name"], field: whole[field]} if field == "arguments" else {field: whole[field]}
            if whole[field]:
                written += self._of_item(f"{event}.delta", delta=whole[field])
            written += self._of_item(f"{event}.done", **done)
        return written + self._done(said)

    def _add(self, said: Said) -> bytes:
        self._index += 1
        self._only_thoughts = self._only_thoughts and said.kind == "reasoning"
        self._item = self._writer.item(self._index, said, "in_progress")
        return self._event("response.output_item.added", output_index=self._index, item=self._item)

    def _done(self, said: Said) -> bytes:
        whole = self._writer.item(self._index, said)
        return self._event("response.output_item.done", output_index=self._index, item=whole)

    def _part(self, kind: str, **values: Any) -> bytes:
        """An event of the open item's one part."""
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


def _failure_code(problem: Problem) -> str:
    """Harnesses stop at an invalid prompt and at a full context; they ask again after most other codes."""
    return problem.code if isinstance(problem, Overflow) else "invalid_prompt"
