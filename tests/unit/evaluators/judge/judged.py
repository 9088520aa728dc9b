"""A session that a judge scores: its calls, its output, its patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from workplace import FolderRuntime, evidence

from polar.evaluators.base import Evidence, HarnessOutput
from polar.evaluators.judge.evaluator import Judge
from polar.registry import make
from polar.types import Call, CallTimes, Message, Spec, ToolCall, logprobs, token_ids


def call(number: int, reply: Message, *new: Message, parent: int | None = None, **fields: Any) -> Call:
    given: dict[str, Any] = {
        "call_id": f"c{number}",
        "session_id": "s1",
        "parent_id": None if parent is None else f"c{parent}",
        "continues": parent is not None,
        "new_prompt_ids": token_ids([1]),
        "completion_ids": token_ids([2]),
        "logprobs": logprobs([-0.5]),
        "prompt_digest": b"",
        "prompt_tokens": 1,
        "finish_reason": "stop",
        "new_messages": new,
        "response": reply,
        "tools": None,
        "new_items": (),
        "dialect": "openai_chat",
        "kind": "agent",
        "sampling": {},
        "engine": "fake",
        "logprob_mode": "raw",
        "times": CallTimes(0.0, 0.0, 0.0),
    }
    return Call(**given | fields)


ASKS = Message("assistant", tool_calls=(ToolCall("bash", '{"command": "ls"}', "t1"),))
CALLS = (
    call(1, ASKS, Message("user", "Fix it.")),
    call(
        2,
        Message("assistant", "Done: the sum is right."),
        ASKS,
        Message("tool", "no such file", tool_call_id="t1", is_error=True),
        parent=1,
    ),
    call(3, Message("assistant", "A title"), Message("user", "name this"), kind="auxiliary"),
)


def session(folder: Path, **fields: Any) -> Evidence:
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    output = HarnessOutput("printed by the harness", "")
    given = {"calls": CALLS, "logs": logs, "endpoints": None, "output": output}
    return msgspec.structs.replace(evidence(FolderRuntime(folder)), **given | fields)


def judge(url: str, **options: Any) -> Judge:
    given = {"base_url": url, "model": "judge-1", "rubric": "Is the sum right?", "retries": 0}
    return make("evaluator", Spec(name="judge", options=given | options))
