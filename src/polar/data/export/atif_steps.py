"""The steps of one trace in ATIF (agent trajectory interchange format) 1.8: messages as steps, tool results as
observations of the step that asked for them, tokens as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from polar.data.export.chat import Conversation, Turn, arguments_object
from polar.types import Call, Message, Span, ToolCall, Trace


class Steps:
    """The steps of a trace, while they are made."""

    def __init__(self, trace: Trace, conversation: Conversation) -> None:
        self._trace = trace
        self._conversation = conversation
        self._spans = {span.call_id: span for span in trace.spans}
        self.made: list[dict[str, Any]] = []
        self.ends: list[tuple[float, dict[str, Any]]] = []
        """When each reply of this trace was sampled, with its step."""
        for turn in conversation.turns:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        message = turn.message
        if message.role == "tool":
            self._observe(message, turn.call)
            return
        if message.role == "assistant":
            self._append("agent", turn, **self._agent_fields(turn))
            if turn.call.call_id in self._spans:
                self.ends.append((turn.call.times.sampled, self.made[-1]))
            return
        self._append(message.role, turn)

    def _append(self, source: str, turn: Turn, **fields: Any) -> None:
        message, call = turn.message, turn.call
        at = call.times.sampled if turn.is_reply else call.times.arrived
        step: dict[str, Any] = {
            "step_id": len(self.made) + 1,
            "timestamp": timestamp(at),
            "source": source,
            "message": _content(message),
            **fields,
        }
        if self._is_copied(turn):
            step["is_copied_context"] = True
        self.made.append(step)

    def _is_copied(self, turn: Turn) -> bool:
        """Of a call before this trace: another trace has it too."""
        return turn.call.call_id not in self._spans

    def _agent_fields(self, turn: Turn) -> dict[str, Any]:
        message, span = turn.message, self._spans.get(turn.call.call_id)
        fields: dict[str, Any] = {}
        if message.reasoning:
            fields["reasoning_content"] = message.reasoning
        if message.tool_calls:
            step_id = len(self.made) + 1
            calls = enumerate(message.tool_calls, 1)
            fields["tool_calls"] = [_tool_call(call, f"step-{step_id}-call-{number}") for number, call in calls]
        if turn.is_reply and span is not None:
            fields["metrics"] = _metrics(self._trace, span, turn.call)
            fields["llm_call_count"] = 1
            fields["extra"] = {"call_id": turn.call.call_id, "finish_reason": turn.call.finish_reason}
        return fields

    def _observe(self, message: Message, call: Call) -> None:
        """A result belongs to the step that asked for it; without such a step it is the environment's own."""
        last = self.made[-1] if self.made else {}
        if last.get("source") != "agent" and "observation" not in last:
            at = timestamp(call.times.arrived)
            self.made.append({"step_id": len(self.made) + 1, "timestamp": at, "source": "system", "message": ""})
        step = self.made[-1]
        asked = {each["tool_call_id"] for each in step.get("tool_calls", ())}
        result: dict[str, Any] = {"content": _content(message)}
        if message.tool_call_id in asked:
            result["source_call_id"] = message.tool_call_id
        elif message.tool_call_id:
            result["extra"] = {"tool_call_id": message.tool_call_id}
        if message.is_error:
            result["extra"] = result.get("extra", {}) | {"is_error": True}
        step.setdefault("observation", {"results": []})["results"].append(result)


def refer(step: dict[str, Any], trajectory_id: str, kind: str) -> None:
    """Names a trajectory that began after this step and before the agent's next."""
    ref = {"trajectory_id": trajectory_id, "extra": {"kind": kind}}
    step.setdefault("observation", {"results": []})["results"].append({"subagent_trajectory_ref": [ref]})


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def totals(steps: list[dict[str, Any]]) -> dict[str, Any]:
    metrics: list[Mapping[str, Any]] = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "total_prompt_tokens": sum(each["prompt_tokens"] for each in metrics),
        "total_completion_tokens": sum(each["completion_tokens"] for each in metrics),
        "total_steps": len(steps),
    }


def _metrics(trace: Trace, span: Span, call: Call) -> dict[str, Any]:
    """The tokens of one call as they stand in the trace."""
    end = span.start + span.length
    prompt = [*trace.prompt_ids, *trace.response_ids[: span.start]]
    metrics: dict[str, Any] = {
        "prompt_tokens": len(prompt),
        "completion_tokens": span.length,
        "prompt_token_ids": prompt,
        "completion_token_ids": trace.response_ids[span.start : end].tolist(),
        "logprobs": trace.logprobs[span.start : end].tolist(),
        "extra": {
            "mask": trace.loss_mask[span.start : end].tolist(),
            "policy_versions": [[part.version, part.start, part.length] for part in span.versions],
            "logprob_mode": call.logprob_mode,
            "sampling": call.sampling,
        },
    }
    if call.evaluated_tokens is not None:
        metrics["cached_tokens"] = max(0, len(prompt) - call.evaluated_tokens)
    return metrics


def _tool_call(call: ToolCall, unnamed: str) -> dict[str, Any]:
    arguments = arguments_object(call.arguments)
    made: dict[str, Any] = {
        "tool_call_id": call.call_id or unnamed,
        "function_name": call.name,
        "arguments": arguments or {},
    }
    if arguments is None:
        made["extra"] = {"arguments_text": call.arguments}
    return made


def _content(message: Message) -> str | list[dict[str, Any]]:
    """ATIF names images by path and type; one of another type, or without any, is left out and marked."""
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.content}]
    for image in message.images:
        kind = image.url[5:].split(";", 1)[0] if image.url.startswith("data:") else ""
        known = kind in ("image/jpeg", "image/png", "image/gif", "image/webp")
        parts.append(
            {"type": "image", "source": {"media_type": kind, "path": image.url}}
            if known
            else {"type": "text", "text": "[image]"}
        )
    return parts
