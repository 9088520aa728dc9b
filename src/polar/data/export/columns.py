"""`parquet`: one flat row for each trace, with everything a trainer or an analysis may need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from polar.data.export.chat import conversation_of, openai_messages, openai_tools
from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession, ChosenTrace
from polar.types import Call, Trace

COLUMNS = (
    *("task_id", "group_id", "sample", "session_id", "attempt", "trace", "kind"),
    *("harness", "harness_version", "model", "engine", "polar", "instruction", "metadata"),
    *("prompt_ids", "completion_ids", "mask", "logprobs", "token_versions", "policy_versions"),
    *("reward", "advantage", "advantages", "context_exact", "untrainable_reason", "failure"),
    *("messages", "tools"),
)
TOKEN_COLUMNS = ("input_ids", "labels", "session_id", "task_id", "kind", "reward")
"""Of `--to tokens --file parquet`."""


def parquet_rows(chosen: ChosenSession, _: ExportPlan) -> Iterator[dict[str, Any]]:
    calls = {call.call_id: call for call in chosen.session.calls}
    shared = _session_columns(chosen)
    for item in chosen.traces:
        yield shared | _trace_columns(item) | _chat_columns(item.trace, calls)


def _session_columns(chosen: ChosenSession) -> dict[str, Any]:
    task, result = chosen.session.task, chosen.session.result
    versions = result.versions
    return {
        "task_id": result.task_id,
        "group_id": chosen.group_id,
        "sample": result.index,
        "session_id": result.session_id,
        "attempt": result.attempt,
        "harness": task.harness.name,
        "harness_version": versions.get("harness", ""),
        "model": versions.get("model", ""),
        "engine": versions.get("engine", ""),
        "polar": versions.get("polar", ""),
        "instruction": task.instruction,
        "metadata": _text(task.metadata),
        "untrainable_reason": result.untrainable_reason,
        "failure": f"{result.failure.where}: {result.failure.type}" if result.failure else "",
    }


def _trace_columns(item: ChosenTrace) -> dict[str, Any]:
    trace = item.trace
    versions = list(trace.policy_versions)
    return {
        "trace": item.number,
        "kind": trace.kind,
        "prompt_ids": trace.prompt_ids.tolist(),
        "completion_ids": trace.response_ids.tolist(),
        "mask": trace.loss_mask.tolist(),
        "logprobs": trace.logprobs.tolist(),
        "policy_versions": versions,
        "token_versions": token_versions(trace, versions),
        "reward": item.reward,
        "advantage": item.advantage,
        "advantages": None if item.advantages is None else item.advantages.tolist(),
        "context_exact": trace.context_exact,
    }


def token_versions(trace: Trace, versions: list[str]) -> list[int]:
    """For each response id the index of its policy version in `versions`; -1: not sampled."""
    number = {version: index for index, version in enumerate(versions)}
    found = [-1] * len(trace.response_ids)
    for span in trace.spans:
        for part in span.versions:
            start = span.start + part.start
            found[start : start + part.length] = [number[part.version]] * part.length
    return found


def _chat_columns(trace: Trace, calls: Mapping[str, Call]) -> dict[str, Any]:
    if any(span.call_id not in calls for span in trace.spans):
        return {"messages": None, "tools": None}
    conversation = conversation_of(trace, calls)
    return {
        "messages": _text(openai_messages(conversation)),
        "tools": _text(openai_tools(conversation.tools)),
    }


def _text(value: Any) -> str:
    """As JSON text: nested values of different rows have different fields, which columns cannot."""
    return orjson.dumps(value).decode()
