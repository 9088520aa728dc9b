"""Sessions to export: calls as a gateway keeps them, traces of the real builder, real certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from polar.audit.certificate import certify
from polar.builders.labels import labelled
from polar.builders.prefix_merging import PrefixMerging
from polar.data.export.export import export
from polar.data.export.files import ExportFolder
from polar.data.export.plan import ExportedGroup, ExportedSession, ExportPlan
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallTimes,
    Failure,
    Lease,
    Message,
    Score,
    Session,
    SessionResult,
    Stage,
    TaskRequest,
    Tool,
    ToolCall,
    Trace,
    TrajectoryStatistics,
    logprobs,
    token_ids,
)

BASH = Tool(name="bash", description="Runs a command.", parameters={"type": "object"})
GONE = Failure(where="engine", type="Gone", message="the engine is gone")
PROMPT, REPLY, RESULT, LAST = [1, 2, 3], [10, 11], [4, 5], [12, 13, 14]


def a_call(name: str, prompt: list[int], new: list[int], said: list[int], **fields: Any) -> Call:
    """`prompt`: all of it; `new`: what its parent does not have."""
    values: dict[str, Any] = {
        "call_id": name,
        "session_id": "t-0",
        "parent_id": None,
        "continues": False,
        "new_prompt_ids": token_ids(new),
        "completion_ids": token_ids(said),
        "logprobs": logprobs([-0.123456789 - n / 3 for n in range(len(said))]),
        "prompt_digest": digest_of(token_ids(prompt)),
        "prompt_tokens": len(prompt),
        "finish_reason": "stop",
        "new_messages": (Message(role="user", content=f"to {name}"),),
        "response": Message(role="assistant", content=f"reply of {name}"),
        "tools": (BASH,),
        "new_items": (b"0" * 16,),
        "dialect": "openai_chat",
        "kind": "agent",
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        "engine": "scripted",
        "logprob_mode": "raw",
        "times": CallTimes(1.0, 1.0, 2.0),
        "policy_version": "7",
        "received": True,
    }
    return Call(**(values | fields))


def two_turns(said: Sequence[int] = LAST) -> list[Call]:
    """A tool call, its result, and a last word. The harness repeats the first reply without its reasoning."""
    asked = Message(
        role="assistant",
        reasoning="I look.",
        tool_calls=(ToolCall(name="bash", arguments='{"command": "ls"}', call_id="c1"),),
    )
    echo = Message(role="assistant", tool_calls=asked.tool_calls)
    first = a_call("first", PROMPT, PROMPT, REPLY, response=asked, finish_reason="tool_calls")
    second = a_call(
        "second",
        [*PROMPT, *REPLY, *RESULT],
        RESULT,
        list(said),
        parent_id="first",
        continues=True,
        tools=None,
        new_messages=(echo, Message(role="tool", content="a.txt", tool_call_id="c1")),
        times=CallTimes(5.0, 5.0, 6.0),
    )
    return [first, second]


def a_session(name: str, reward: float | None, calls: Sequence[Call] = (), **fields: Any) -> ExportedSession:
    """`name` is `TASK-INDEX`. `builder` among the fields are options of the builder."""
    task_id, _, index = name.rpartition("-")
    task = TaskRequest(task_id=task_id, instruction="Do it.", num_samples=8, metadata={"level": 3})
    calls = [msgspec.structs.replace(call, session_id=name) for call in calls or two_turns()]
    built = PrefixMerging(PrefixMerging.Options(**fields.pop("builder", {}))).build(name, calls)
    score = None if reward is None else Score(reward=reward)
    failure = fields.get("failure")
    lease = Lease(session=Session(session_id=name, task_id=task_id, index=int(index)), task=task)
    result = SessionResult.model_validate(
        {
            "session_id": name,
            "task_id": task_id,
            "index": int(index),
            "attempt": 1,
            "stage": Stage.FAILED if failure else Stage.COMPLETED,
            "score": score,
            "statistics": TrajectoryStatistics.model_validate(built.statistics),
            "certificate": certify(calls, built),
            "versions": {"polar": "0.1.0", "harness": "pi 1.2", "model": "tiny@1", "engine": "scripted 1"},
            **fields,
        }
    )
    trajectory = labelled(built, lease, score, failure)
    return ExportedSession(task, result, trajectory, tuple(calls))


def a_group(*sessions: ExportedSession, unfinished: int = 0) -> ExportedGroup:
    return ExportedGroup(sessions[0].task.group, sessions, unfinished)


def traces_of(*groups: ExportedGroup) -> list[Trace]:
    return [t for group in groups for s in group.sessions if s.trajectory for t in s.trajectory.traces]


async def source(groups: Sequence[ExportedGroup]) -> AsyncGenerator[ExportedGroup]:
    for group in groups:
        yield group


def exported(target: Path, plan: ExportPlan, *groups: ExportedGroup) -> dict[str, Any]:
    """Exports and returns the report."""
    return asyncio.run(export(source(groups), plan, ExportFolder(target), {}))


def lines(target: Path) -> list[dict[str, Any]]:
    files = sorted((target / "data").glob("*.jsonl"))
    return [orjson.loads(line) for path in files for line in path.read_bytes().splitlines()]
