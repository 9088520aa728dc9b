"""A reply as the Responses API writes it: a response and its items. A stream ends with the same object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from polar.gateway.dialects.base import ChatRequest, Reply, ReplyHead
from polar.gateway.dialects.fields import arguments_object, freeform_input
from polar.gateway.dialects.openai_responses.tools import is_tool_search, wire_names
from polar.types import Delta, Tool, ToolCall

Status = Literal["in_progress", "completed"]


class Said(msgspec.Struct):
    """What becomes one item of the output. A message without texts says that the model said nothing."""

    kind: Literal["reasoning", "message", "call"]
    texts: list[str] = []
    call: ToolCall | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)


def said_of(delta: Delta) -> Said | None:
    if delta.tool_call is not None:
        return Said("call", call=delta.tool_call)
    if delta.reasoning:
        return Said("reasoning", [delta.reasoning])
    return Said("message", [delta.content]) if delta.content else None


def everything_said(deltas: Iterable[Delta]) -> list[Said]:
    """In the order it was said: neighbouring texts of a kind are one item, each call is its own."""
    found: list[Said] = []
    for said in filter(None, map(said_of, deltas)):
        if found and said.kind == found[-1].kind != "call":
            found[-1].texts += said.texts
        else:
            found.append(said)
    if all(said.kind == "reasoning" for said in found):
        found.append(Said("message"))
    return found


class Writer:
    """Writes what is said in one reply."""

    def __init__(self, request: ChatRequest, head: ReplyHead) -> None:
        self._request = request
        self._head = head
        self._tools = {tool.name: tool for tool in request.tools}

    def item(self, index: int, said: Said, status: Status = "completed") -> dict[str, Any]:
        """Empty as long as it is in progress."""
        if said.call is not None:
            return self._call(index, said.call, status)
        suffix = f"{self._head.reply_id}_{index}"
        whole = status == "completed"
        if said.kind == "reasoning":
            return {
                "id": f"rs_{suffix}",
                "type": "reasoning",
                "status": status,
                "summary": [summary_part(said.text)] if whole else [],
                "content": [{"type": "reasoning_text", "text": said.text}] if whole else [],
                "encrypted_content": self._head.reply_id if whole else None,
            }
        return {
            "id": f"msg_{suffix}",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [text_part(said.text)] if whole else [],
        }

    def response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        asked, schema = self._request.asked, self._request.json_schema
        text_format: dict[str, Any] = {"type": "text"}
        if schema is not None:
            text_format = {"type": "json_schema", "name": "reply", "schema": schema}
        return {
            "id": f"resp_{self._head.reply_id}",
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self._request.max_tokens,
            "metadata": {},
            "model": self._head.model,
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
        """Completed also where the limit has cut it off: some harnesses ask for ever for what is incomplete."""
        output = [self.item(index, said) for index, said in enumerate(everything_said(reply.deltas))]
        cut_off = {"reason": "max_output_tokens"} if reply.finish_reason == "length" else None
        return {**self.response("completed", output), "incomplete_details": cut_off, "usage": _usage(reply)}

    def _call(self, index: int, call: ToolCall, status: Status) -> dict[str, Any]:
        tool, suffix, whole = self._tools.get(call.name), f"{self._head.reply_id}_{index}", status == "completed"
        head = {"status": status, "call_id": call.call_id}
        if tool is not None and is_tool_search(tool):
            arguments = arguments_object(call.arguments) if whole else {}
            item = {"id": f"tsc_{suffix}", "type": "tool_search_call", **head}
            return {**item, "execution": "client", "arguments": arguments}
        names = wire_names(call.name, tool)
        text = call_text(call, tool)
        if tool is None or not tool.freeform:
            item = {"id": f"fc_{suffix}", "type": "function_call", **head, **names}
            return {**item, "arguments": text if whole else ""}
        mark = "_raw" if text == call.arguments else ""
        item = {"id": f"ctc_{suffix}{mark}", "type": "custom_tool_call", **head, **names}
        return {**item, "input": text if whole else ""}


def call_text(call: ToolCall, tool: Tool | None) -> str:
    return freeform_input(call.arguments) if tool is not None and tool.freeform else call.arguments


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_part(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.head.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": reply.head.prompt_tokens + reply.completion_tokens,
    }
