"""ATIF documents, read with the package `atif`: its models refuse every field that the format does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import orjson
from atif import Trajectory

from exported_sessions import (
    LAST,
    PROMPT,
    REPLY,
    RESULT,
    a_call,
    a_group,
    a_session,
    exported,
    traces_of,
    two_turns,
)
from polar.data.export.plan import ExportedGroup, ExportPlan
from polar.types import Call, CallTimes, Image, Message, ToolCall, logprobs

PLAN = ExportPlan("atif")


def documents(target: Path, *groups: ExportedGroup, plan: ExportPlan = PLAN) -> dict[str, Trajectory]:
    """By file name, each valid."""
    exported(target, plan, *groups)
    read = {path.name: orjson.loads(path.read_bytes()) for path in sorted((target / "data").iterdir())}
    return {name: Trajectory.model_validate(value) for name, value in read.items()}


def one(target: Path, *calls: Call) -> Trajectory:
    (document,) = documents(target, a_group(a_session("t-0", 1.0, calls))).values()
    return document


def test_a_session_is_a_valid_document(tmp_path: Path) -> None:
    document = one(tmp_path / "set", *two_turns())
    assert (document.schema_version, document.session_id) == ("ATIF-v1.8", "t-0")
    assert (document.agent.name, document.agent.version, document.agent.model_name) == ("pi", "pi 1.2", "tiny@1")
    assert [step.source for step in document.steps] == ["user", "agent", "agent"]
    _, asked, last = document.steps
    assert asked.reasoning_content == "I look." and asked.tool_calls and asked.observation
    assert (asked.tool_calls[0].function_name, asked.tool_calls[0].arguments) == ("bash", {"command": "ls"})
    assert [(r.source_call_id, r.content) for r in asked.observation.results] == [("c1", "a.txt")]
    assert last.message == "reply of second"
    assert document.extra and (document.extra["reward"], document.extra["task_id"]) == (1.0, "t")


def test_each_step_has_the_exact_tokens_of_its_call(tmp_path: Path) -> None:
    calls = two_turns()
    group = a_group(a_session("t-0", 1.0, calls))
    (document,) = documents(tmp_path / "set", group).values()
    metrics: list[Any] = [step.metrics for step in document.steps if step.metrics]
    assert [m.prompt_token_ids for m in metrics] == [PROMPT, [*PROMPT, *REPLY, *RESULT]]
    assert [m.completion_token_ids for m in metrics] == [REPLY, LAST]
    assert [logprobs(m.logprobs).tobytes() for m in metrics] == [call.logprobs.tobytes() for call in calls]
    assert [m.extra["mask"] for m in metrics] == [[1, 1], [1, 1, 1]]
    assert [m.extra["policy_versions"] for m in metrics] == [[["7", 0, 2]], [["7", 0, 3]]]
    (trace,) = traces_of(group)
    assert metrics[-1].prompt_token_ids + metrics[-1].completion_token_ids == [
        *trace.prompt_ids,
        *trace.response_ids,
    ]


def test_a_sub_agent_is_embedded_and_named_by_the_step_before_it(tmp_path: Path) -> None:
    first, second = two_turns()
    helper = a_call("helper", [7, 8], [7, 8], [15], kind="subagent", times=CallTimes(3.0, 3.0, 4.0))
    document = one(tmp_path / "set", first, helper, second)
    assert document.subagent_trajectories
    (embedded,) = document.subagent_trajectories
    assert embedded.extra and embedded.extra["kind"] == "subagent"
    assert [step.message for step in embedded.steps] == ["to helper", "reply of helper"]
    asked = document.steps[1].observation
    assert asked
    refs = [ref.trajectory_id for result in asked.results for ref in result.subagent_trajectory_ref or ()]
    assert refs == [embedded.trajectory_id]


def test_a_compacted_history_continues_in_a_document_of_its_own(tmp_path: Path) -> None:
    first, second = two_turns()
    summary = a_call("summary", [30], [30], [31], kind="compaction", times=CallTimes(7.0, 7.0, 8.0))
    after = a_call("after", [40, 41], [40, 41], [42], times=CallTimes(9.0, 9.0, 10.0))
    found = documents(tmp_path / "set", a_group(a_session("t-0", 1.0, [first, second, summary, after])))
    assert list(found) == ["t-0.1.json", "t-0.json"]
    assert found["t-0.json"].continued_trajectory_ref == "t-0.1.json"
    assert found["t-0.1.json"].continued_trajectory_ref is None
    assert found["t-0.1.json"].steps[-1].message == "reply of after"
    assert [sub.extra and sub.extra["kind"] for sub in found["t-0.json"].subagent_trajectories or ()] == [
        "compaction"
    ]


def test_what_another_trace_trains_on_is_copied_context(tmp_path: Path) -> None:
    """The format forbids training on such steps, so no reply is trained on twice."""
    first, second = two_turns()
    branch = a_call(
        "branch",
        [*PROMPT, *REPLY, 9],
        [9],
        [20],
        parent_id="first",
        continues=True,
        tools=None,
        new_messages=(first.response, Message(role="user", content="Or so?")),
        times=CallTimes(5.5, 5.5, 7.0),
    )
    document = one(tmp_path / "set", first, second, branch)
    assert document.subagent_trajectories, "it ran beside the agent's last call"
    steps = document.subagent_trajectories[0].steps
    assert [step.is_copied_context for step in steps] == [True, True, None, None]
    assert [step.metrics is None for step in steps] == [True, True, True, False]


def test_what_the_format_cannot_hold_goes_to_extra(tmp_path: Path) -> None:
    odd = Message(role="assistant", tool_calls=(ToolCall("bash", "[1]", "c1"), ToolCall("bash", "", "")))
    first, second = two_turns()
    results = (
        odd,
        Message(role="tool", content="failed", tool_call_id="c1", is_error=True),
        Message(role="tool", content="who asked?", tool_call_id="c9"),
        Message(role="user", content="Go on.", images=(Image("data:image/png;base64,AA==", 0), Image("x:y", 0))),
        Message(role="tool", content="late"),
    )
    first = msgspec.structs.replace(first, response=odd)
    document = one(tmp_path / "set", first, msgspec.structs.replace(second, new_messages=results))
    assert [step.source for step in document.steps] == ["user", "agent", "user", "system", "agent"]
    asked = document.steps[1]
    assert asked.tool_calls and asked.observation
    assert [(c.tool_call_id, c.arguments, c.extra) for c in asked.tool_calls] == [
        ("c1", {}, {"arguments_text": "[1]"}),
        ("step-2-call-2", {}, None),
    ]
    assert [(r.source_call_id, r.extra) for r in asked.observation.results] == [
        ("c1", {"is_error": True}),
        (None, {"tool_call_id": "c9"}),
    ]
    content: Any = document.steps[2].message
    assert [part.type for part in content] == ["text", "image", "text"]
