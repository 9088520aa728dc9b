"""`polar show --json`: a session with its calls, their messages and its traces."""

from __future__ import annotations

from typing import Any

import msgspec

from polar.cli.show.shown_session import ShownSession, run_state, timed
from polar.types import Call, Trace

USAGE = "prompt_tokens completion_tokens cached_tokens reasoning_tokens"


def session_json(session: ShownSession, *, with_tokens: bool) -> dict[str, Any]:
    result = session.result
    return {
        **session.origin,
        "run_state": run_state(session),
        "folder": str(session.folder) if session.folder else None,
        "session": session.lease.session.model_dump(mode="json"),
        "task": session.lease.task.model_dump(mode="json"),
        "stages": [{"stage": stage.value, "at": at, "took_s": took} for stage, at, took in timed(session)],
        "calls": [call_json(call) for call in session.calls],
        "waits": getattr(session, "waits", ""),
        "result": result.model_dump(mode="json") if result else None,
        "traces": [_trace_json(trace, with_tokens=with_tokens) for trace in session.traces],
    }


def call_json(call: Call, *, with_tokens: bool = False) -> dict[str, Any]:
    """`new_messages`: those that its parent's request did not have, first the harness's echo of the parent's
    reply. `tools`: null if they are the parent's."""
    shown = {
        **_fields(call, "call_id parent_id continues break_reason kind dialect engine"),
        **_fields(call.times, "arrived rendered sampled"),
        **_fields(call, "prompt_tokens evaluated_tokens"),
        "sampled_tokens": len(call.completion_ids),
        "usage": None if call.usage is None else _fields(call.usage, USAGE),
        **_fields(call, "cut_tokens finish_reason received tolerant lone_surrogates sampling policy_version"),
        "policy_spans": [(span.version, span.start, span.length) for span in call.policy_spans],
        "updated_within": call.updated_within,
        "tools": None if call.tools is None else [tool.name for tool in call.tools],
        "new_messages": [msgspec.to_builtins(message) for message in call.new_messages],
        "response": msgspec.to_builtins(call.response),
    }
    if with_tokens:  # a NaN, for a token without a logprob, becomes null
        shown |= {"completion_ids": list(call.completion_ids), "logprobs": list(call.logprobs)}
    return shown


def _trace_json(trace: Trace, *, with_tokens: bool) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "kind": trace.kind,
        "prompt_tokens": len(trace.prompt_ids),
        "response_tokens": len(trace.response_ids),
        "trainable_tokens": trace.trainable_tokens,
        "calls": [span.call_id for span in trace.spans],
        **_fields(trace, "policy_versions context_exact reward task_id group_id sample attempt failure"),
    }
    if not with_tokens:
        return summary
    arrays = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
    return summary | {name: list(getattr(trace, name)) for name in arrays}


def _fields(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}
