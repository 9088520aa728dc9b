"""A session's calls: an agent whose second call continues the first, a helper of its own, and a title."""

from __future__ import annotations

from typing import Any

from stored_groups import a_session

from polar.builders.prefix_merging import PrefixMerging
from polar.credit.advantages import FinishedSession
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallTimes,
    Failure,
    Message,
    Tool,
    ToolCall,
    TrajectoryStatistics,
    logprobs,
    token_ids,
)

EXITED = Failure.model_validate({"where": "harness", "type": "Exited", "message": "exit code 1", "agent": True})
"""The agent's own failure: its reward of 0.0 counts."""
PROMPT, REPLY, RESULT, LAST = [1, 2, 3], [10, 11], [4, 5], [12, 13, 14]


def a_call(name: str, prompt: list[int], new: list[int], said: list[int], **fields: Any) -> Call:
    values: dict[str, Any] = {
        "call_id": name,
        "session_id": "t-0",
        "parent_id": None,
        "continues": False,
        "new_prompt_ids": token_ids(new),
        "completion_ids": token_ids(said),
        "logprobs": logprobs([-0.123456789 - n for n in range(len(said))]),
        "prompt_digest": digest_of(token_ids(prompt)),
        "prompt_tokens": len(prompt),
        "finish_reason": "stop",
        "new_messages": (Message(role="user", content=name),),
        "response": Message(role="assistant", content=f"reply of {name}"),
        "tools": (Tool(name="bash"),),
        "new_items": (b"0" * 16,),
        "dialect": "openai_chat",
        "kind": "agent",
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
        "engine": "scripted",
        "logprob_mode": "raw",
        "times": CallTimes(1.0, 1.0, 2.0),
        "policy_version": "1",
        "received": True,
    }
    return Call(**(values | fields))


def session_calls() -> list[Call]:
    asked = Message(role="assistant", tool_calls=(ToolCall(name="bash", arguments="{}", call_id="c1"),))
    first = a_call("first", PROMPT, PROMPT, REPLY, response=asked, finish_reason="tool_calls")
    second = a_call(
        "second",
        [*PROMPT, *REPLY, *RESULT],
        RESULT,
        LAST,
        parent_id="first",
        continues=True,
        tools=None,
        new_messages=(asked, Message(role="tool", content="ok", tool_call_id="c1")),
    )
    helper = a_call("helper", [7, 8], [7, 8], [15], kind="subagent", tools=())
    title = a_call("title", [9], [9], [16, 17], kind="auxiliary", tools=())
    return [first, title, helper, second]


def called_session(reward: float = 1.0) -> FinishedSession:
    trajectory = PrefixMerging(PrefixMerging.Options()).build("t-0", session_calls())
    return a_session("t-0", reward, *trajectory.traces)


def untaught_session() -> FinishedSession:
    """An agent that failed with a reward of 0.0; it sampled, and none of its tokens may be trained on."""
    failed = a_session("t-0", 0.0, failure=EXITED, statistics=TrajectoryStatistics(calls=4, sampled_tokens=8))
    assert failed.result.in_baseline and not failed.result.trainable
    return FinishedSession(failed.result, None)
