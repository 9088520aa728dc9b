"""A whole reply of the Responses API: a response with its items. A stream ends with the same object."""

from __future__ import annotations

from typing import Any, Literal

from polar.gateway.dialects.base import ChatRequest, Reply, joined
from polar.gateway.dialects.openai_responses.tools import call_names, is_tool_search
from polar.gateway.dialects.raw_request import arguments_object, freeform_input
from polar.types import Delta, ToolCall

TextKind = Literal["reasoning", "content"]


class OutputWriter:
    """Writes the response of one reply, and its items."""

    def __init__(self, request: ChatRequest, reply: Reply) -> None:
        self._request = request
        self._reply = reply
        self._tools = {tool.name: tool for tool in request.tools}

    def text(self, index: int, kind: TextKind, text: str | None) -> dict[str, Any]:
        """An item of reasoning or a message. `text` is None while it is in progress."""
        suffix = f"{self._reply.reply_id}_{index}"
        status = "in_progress" if text is None else "completed"
        if kind == "content":
            item = {"id": f"msg_{suffix}", "type": "message", "status": status, "role": "assistant"}
            return {**item, "content": [] if text is None else [text_part(text)]}
        return {
            "id": f"rs_{suffix}",
            "type": "reasoning",
            "status": status,
            "summary": [] if text is None else [summary_part(text)],
            "content": [] if text is None else [{"type": "reasoning_text", "text": text}],
            "encrypted_content": None if text is None else self._reply.reply_id,
        }

    def call(self, index: int, call: ToolCall, *, whole: bool) -> dict[str, Any]:
        """A tool call; without its arguments unless it is `whole`."""
        tool, suffix = self._tools.get(call.name), f"{self._reply.reply_id}_{index}"
        head = {"status": "completed" if whole else "in_progress", "call_id": call.call_id}
        if tool is not None and is_tool_search(tool):
            arguments = arguments_object(call.arguments) if whole else {}
            item = {"id": f"tsc_{suffix}", "type": "tool_search_call", **head}
            return {**item, "execution": "client", "arguments": arguments}
        names = call_names(call.name, tool)
        if tool is None or not tool.freeform:
            item = {"id": f"fc_{suffix}", "type": "function_call", **head, **names}
            return {**item, "arguments": call.arguments if whole else ""}
        text = freeform_input(call.arguments)
        mark = "_raw" if text == call.arguments else ""
        item = {"id": f"ctc_{suffix}{mark}", "type": "custom_tool_call", **head, **names}
        return {**item, "input": text if whole else ""}

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        asked, schema = self._request.asked, self._request.json_schema
        text_format: dict[str, Any] = {"type": "text"}
        if schema is not None:
            text_format = {"type": "json_schema", "name": "reply", "schema": schema}
        return {
            "id": f"resp_{self._reply.reply_id}",
            "object": "response",
            "created_at": self._reply.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self._request.max_tokens,
            "metadata": {},
            "model": self._reply.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": asked.get("reasoning"),
            "store": False,
            "temperature": asked.get("temperature"),
            "text": {"format": text_format},
            "tool_choice": "auto",
            "tools": [],
            "top_p": asked.get("top_p"),
            "truncation": "disabled",
            "usage": None,
        }

    def completed(self, reply: Reply) -> dict[str, Any]:
        """Completed even if the limit has cut it off: some harnesses retry an incomplete response forever."""
        deltas = joined(reply.deltas)
        if all(delta.reasoning for delta in deltas):
            deltas.append(Delta())
        output = [self._item(index, delta) for index, delta in enumerate(deltas)]
        cut_off = {"reason": "max_output_tokens"} if reply.finish_reason == "length" else None
        return {**self.response("completed", output), "incomplete_details": cut_off, "usage": usage_json(reply)}

    def _item(self, index: int, delta: Delta) -> dict[str, Any]:
        if delta.tool_call is not None:
            return self.call(index, delta.tool_call, whole=True)
        return self.text(index, "reasoning" if delta.reasoning else "content", delta.reasoning or delta.content)


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def usage_json(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
