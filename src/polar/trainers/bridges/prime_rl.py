"""prime-rl, through verifiers: a session as a verifiers `Trace`, whose nodes are the session's calls.

A verifiers branch is a path of nodes whose tokens, joined, are what the engine saw. Polar's calls are stored the
same way, each as what it adds to its parent, so every call becomes the nodes of its new messages and one node of
its reply. Tokens of the prompt stand on the reply's node, before the sampled ones, with mask False: which message
they belong to is not recorded. A token is trainable if it is in the session's traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_session
from polar.types import Call, Message, Stage, Tool

INSTALL = "'verifiers==0.4.0'"


def nodes_of(calls: Iterable[Call], session: SessionTraces) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The fields of verifiers' message nodes, and of its model calls."""
    graph = _Graph(trainable_ids(session))
    for call in calls:
        graph.add(call)
    return graph.nodes, graph.calls


def trainable_ids(session: SessionTraces) -> dict[str, set[int]]:
    """For each call, which of its sampled tokens are trained on, as positions in its reply."""
    found: dict[str, set[int]] = {}
    for item in session.traces:
        for span in item.trace.spans:
            mask = item.trace.loss_mask[span.start : span.start + span.length]
            found.setdefault(span.call_id, set()).update(n for n, trained in enumerate(mask) if trained)
    return found


class _Graph:
    def __init__(self, trainable: Mapping[str, set[int]]) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self._trainable = trainable
        self._reply_of: dict[str, int] = {}
        """The node of each call's reply."""
        self._messages_of: dict[str, tuple[Message, ...]] = {}
        """All messages of each call's request."""
        self._tools_of: dict[str, tuple[Tool, ...]] = {}

    def add(self, call: Call) -> None:
        before = self._messages_of.get(call.parent_id or "", ())
        self._messages_of[call.call_id] = (*before, *call.new_messages)
        tools = self._tools_of.get(call.parent_id or "", ()) if call.tools is None else call.tools
        self._tools_of[call.call_id] = tools
        parent = self._reply_of.get(call.parent_id or "") if call.continues else None
        messages = self._messages_of[call.call_id]
        if parent is not None:
            # The first new message is the echo of the parent's reply, which has a node.
            messages = call.new_messages[call.new_messages[0].role == "assistant" :]
        for message in messages:
            parent = self._append(call, parent, message, tools)
        self._append_reply(call, parent, tools)

    def _append(self, call: Call, parent: int | None, message: Message, tools: Sequence[Tool]) -> int:
        node: dict[str, Any] = {"parent": parent, "message": message_of(message), "timestamp": call.times.arrived}
        if parent is None and tools:
            node["tools"] = [tool_of(tool) for tool in tools]
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _append_reply(self, call: Call, parent: int | None, tools: Sequence[Tool]) -> None:
        number = self._append(call, parent, call.response, tools)
        trained = self._trainable.get(call.call_id, set())
        sampled = [position in trained for position in range(len(call.completion_ids))]
        self.nodes[number] |= {
            "sampled": True,
            "timestamp": call.times.sampled,
            "token_ids": [*call.new_prompt_ids, *call.completion_ids],
            "mask": [*[False] * len(call.new_prompt_ids), *sampled],
            "logprobs": [value for value, kept in zip(call.logprobs, sampled, strict=True) if kept],
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


def record_of(session: SessionTraces, calls: Iterable[Call], task: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a verifiers `Trace`. `task`: those of its `TraceTask`. A session that may not be trained on is
    not `ok` and has no reward, so that prime-rl leaves it out of its group."""
    result = session.result
    nodes, made = nodes_of(calls, session)
    failure = result.failure
    errors = [{"type": failure.type, "message": f"{failure.where}: {failure.message}"}] if failure else []
    if session.left_out and not errors:
        errors = [{"type": "LeftOut", "message": session.left_out}]
    return {
        "id": result.session_id,
        "task": dict(task),
        "agent": {"config": {}, "trainable": bool(session.traces)},
        "nodes": nodes,
        "calls": made,
        "rewards": {"polar": {"score": session.reward} if session.traces else None},
        "metrics": dict(result.score.metrics) if result.score else {},
        "info": {"polar": {"task_id": result.task_id, "stage": result.stage.value, "left_out": session.left_out}},
        "is_completed": True,
        "ok": bool(session.traces),
        "stop_condition": result.ended_by or ("agent_completed" if session.traces else "error"),
        "is_timeout": result.stage is Stage.TIMED_OUT,
        "errors": errors,
    }


def environment(
    config: BridgeConfig, connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None
) -> Any:
    """A verifiers `Env` class whose episodes are sessions of Polar. In the package of an environment:

        MyEnv = environment(BridgeConfig(task={"harness": "pi", "evaluator": ...}))

    The task's prompt is the instruction; a field `polar` of the task's data has further fields of a Polar task.
    The model context that prime-rl gives is not used: Polar's nodes know their engine."""
    single = load("verifiers.v1.envs.single_agent.env", INSTALL).SingleAgentEnv

    class PolarEnv(single):
        async def run_episode(self, task: Any, ctx: Any, *, on_trace: Any = None, on_discard: Any = None) -> Any:
            return await run_episode(task, config, connect or config.client, on_trace)

    return PolarEnv


async def run_episode(
    task: Any,
    config: BridgeConfig,
    connect: Callable[[], AbstractAsyncContextManager[GroupClient]],
    on_trace: Callable[[Any], None] | None = None,
) -> Any:
    """One session as a verifiers `Episode` of one trace."""
    fields = task.data.model_dump()
    async with connect() as client:
        session = await run_session(client, config, config.task_for(fields["prompt"], fields))
        calls = (await client.upload(session.result.session_id)).calls if session.traces else ()
    described = {"type": type(task).__name__, "data": fields, "key": task.key, "hash": task.hash}
    trace = load("verifiers.v1.trace", INSTALL).Trace.model_validate(record_of(session, calls, described))
    if on_trace is not None:
        on_trace(trace)
    episode_type = load("verifiers.v1.episode", INSTALL).Episode
    return episode_type(task=trace.task, traces=[trace], ok=trace.ok, errors=list(trace.errors))
