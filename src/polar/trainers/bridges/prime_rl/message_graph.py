"""A session's calls as the nodes of verifiers' message graph.

A verifiers branch is a path of nodes whose tokens, joined, are what the engine saw. Polar's calls are stored the
same way, each as what it adds to its parent, so every call becomes the nodes of its new messages and one node of
its reply. Tokens of the prompt stand on the reply's node, before the sampled ones, with mask False: which message
they belong to is not recorded. A token is trainable if it is in the session's traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polar.trainers.bridges.sessions import SessionTraces
from polar.types import Call, Message, Tool


def nodes_of(
    calls: Iterable[Call], session: SessionTraces, max_tokens: int | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The fields of verifiers' message nodes, and of its model calls."""
    graph = graph_of(calls, session, max_tokens)
    return graph.nodes, graph.calls


def graph_of(calls: Iterable[Call], session: SessionTraces, max_tokens: int | None = None) -> MessageGraph:
    """`max_tokens`: of a branch. The reply that goes beyond it is cut; what follows is left out."""
    graph = MessageGraph(trainable_ids(session), max_tokens)
    for call in calls:
        graph.add(call)
    return graph


def trainable_ids(session: SessionTraces) -> dict[str, set[int]]:
    """For each call, which of its sampled tokens are trained on, as positions in its reply."""
    found: dict[str, set[int]] = {}
    for item in session.traces:
        for span in item.trace.spans:
            mask = item.trace.loss_mask[span.start : span.start + span.length]
            found.setdefault(span.call_id, set()).update(n for n, trained in enumerate(mask) if trained)
    return found


class MessageGraph:
    def __init__(self, trainable: Mapping[str, set[int]], max_tokens: int | None = None) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.was_cut = False
        """A branch of the agent went beyond `max_tokens`."""
        self._trainable = trainable
        self._max_tokens = max_tokens
        self._reply_of: dict[str, int] = {}
        """The node of each call's reply."""
        self._size_of: dict[str, int] = {}
        """Tokens of each call's prompt and reply."""
        self._messages_of: dict[str, tuple[Message, ...]] = {}
        """All messages of each call's request."""
        self._tools_of: dict[str, tuple[Tool, ...]] = {}

    def add(self, call: Call) -> None:
        before = self._messages_of.get(call.parent_id or "", ())
        self._messages_of[call.call_id] = (*before, *call.new_messages)
        tools = self._tools_of.get(call.parent_id or "", ()) if call.tools is None else call.tools
        self._tools_of[call.call_id] = tools
        start = self._size_of.get(call.parent_id or "", 0) if call.continues else 0
        self._size_of[call.call_id] = start + len(call.new_prompt_ids) + len(call.completion_ids)
        room = self._room(call, start)
        if room > 0:
            self._append_call(call, tools, room)

    def _room(self, call: Call, start: int) -> int:
        """How many tokens of the call fit into a branch in which it begins at `start`."""
        size = self._size_of[call.call_id] - start
        room = max(size, 1) if self._max_tokens is None else self._max_tokens - start
        self.was_cut = self.was_cut or (room < size and call.kind != "auxiliary")
        return room

    def _append_call(self, call: Call, tools: Sequence[Tool], room: int) -> None:
        parent = self._reply_of.get(call.parent_id or "") if call.continues else None
        messages = self._messages_of[call.call_id]
        if parent is not None:
            # The first new message is the echo of the parent's reply, which has a node.
            messages = call.new_messages[call.new_messages[0].role == "assistant" :]
        for message in messages:
            parent = self._append(call, parent, message, tools)
        self._append_reply(call, self._append(call, parent, call.response, tools), room)

    def _append(self, call: Call, parent: int | None, message: Message, tools: Sequence[Tool]) -> int:
        node: dict[str, Any] = {"parent": parent, "message": message_of(message), "timestamp": call.times.arrived}
        if parent is None and tools:
            node["tools"] = [tool_of(tool) for tool in tools]
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _append_reply(self, call: Call, number: int, room: int) -> None:
        trained = self._trainable.get(call.call_id, set())
        mask = [False] * len(call.new_prompt_ids) + [n in trained for n in range(len(call.completion_ids))]
        replied = mask[len(call.new_prompt_ids) : room]
        self.nodes[number] |= {
            "sampled": True,
            "timestamp": call.times.sampled,
            "token_ids": [*call.new_prompt_ids, *call.completion_ids][:room],
            "mask": mask[:room],
            "logprobs": [value for value, kept in zip(call.logprobs, replied, strict=False) if kept],
        }
        self._reply_of[call.call_id] = number
        self.calls.append(
            {
                "node": number,
                "finish_reason": None if call.finish_reason == "aborted" else call.finish_reason,
                "usage": {"prompt_tokens": call.prompt_tokens, "completion_tokens": len(call.completion_ids)},
                "time": {"start": call.times.arrived, "end": call.times.sampled},
            }
        )


def message_of(message: Message) -> dict[str, Any]:
    """A message in verifiers' form. Images are left out: their tokens are in the ids."""
    if message.role == "assistant":
        calls = [
            {"id": call.call_id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls
        ]
        return {
            "role": "assistant",
            "content": message.content or None,
            "reasoning_content": message.reasoning or None,
            "tool_calls": calls or None,
        }
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    return {"role": message.role, "content": message.content}


def tool_of(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
