"""Whether a session's data can be relied on: each problem, from the calls and the harness's own log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from polar.session.health import HealthFacts, health_of
from polar.types import (
    HEALTH_PROBLEMS,
    Call,
    CallTimes,
    Certificate,
    EndpointUsage,
    HarnessUsage,
    Health,
    Message,
    ReplyCount,
    ToolCall,
    logprobs,
    token_ids,
)

EXACT = Certificate(
    builder="prefix_merging",
    calls=1,
    traces=1,
    sampled_tokens=2,
    trainable_tokens=2,
    dropped_tokens=0,
    calls_digest="",
    traces_digest="",
    exact=True,
)


def call(number: int, prompt: int = 10, completion: int = 2, **fields: Any) -> Call:
    given: dict[str, Any] = {
        "call_id": f"c{number}",
        "session_id": "s1",
        "parent_id": None,
        "continues": False,
        "new_prompt_ids": token_ids([1]),
        "completion_ids": token_ids([2] * completion),
        "logprobs": logprobs([-0.5] * completion),
        "prompt_digest": b"",
        "prompt_tokens": prompt,
        "finish_reason": "stop",
        "new_messages": (),
        "response": Message("assistant", "ok"),
        "tools": None,
        "new_items": (),
        "dialect": "anthropic",
        "kind": "agent",
        "sampling": {},
        "engine": "fake",
        "logprob_mode": "raw",
        "times": CallTimes(0.0, 0.0, 0.0),
        "received": True,
    }
    return Call(**given | fields)


def log(*pairs: tuple[int, int]) -> HarnessUsage:
    return HarnessUsage(
        replies=tuple(ReplyCount(prompt_tokens=prompt, completion_tokens=reply) for prompt, reply in pairs)
    )


def health(*calls: Call, **facts: Any) -> Health:
    return health_of(HealthFacts(**{"calls": calls, "certificate": EXACT, **facts}))


def told(found: Health) -> list[tuple[str, int]]:
    return [(finding.what, finding.count) for finding in found.findings]


def test_a_session_whose_log_agrees_is_ok() -> None:
    found = health(call(1, 10, 2), call(2, 14, 3), own=log((10, 2), (14, 3)))
    assert found == Health(verdict="ok", calls=2, own_calls=2)


def test_a_harness_without_a_log_is_ok_too() -> None:
    assert health(call(1)) == Health(verdict="ok", calls=1, own_calls=None)


def test_traces_that_are_not_exact_are_broken() -> None:
    wrong = EXACT.model_copy(update={"exact": False, "findings": 2, "reasons": {"tokens": 2}})
    found = health(call(1), certificate=wrong)
    assert (found.verdict, told(found)) == ("broken", [("capture_inexact", 2)])
    assert found.findings[0].detail == "tokens 2"
    inexact = EXACT.model_copy(update={"exact": False, "inexact_traces": 1})
    assert told(health(call(1), certificate=inexact)) == [("capture_inexact", 1)]


def test_calls_without_traces_are_broken_and_no_calls_are_not() -> None:
    assert told(health(call(1), certificate=None)) == [("capture_missing", 1)]
    assert health(certificate=None).verdict == "ok"


def test_a_reply_that_was_never_captured_is_broken() -> None:
    """The harness reached another model, past the gateway."""
    found = health(call(1, 10, 2), own=log((10, 2), (500, 20)))
    assert (found.verdict, told(found)) == ("broken", [("not_captured", 1)])
    assert "500 + 20 tokens" in found.findings[0].detail


def test_a_reply_with_other_numbers_is_missing_on_both_sides() -> None:
    found = health(call(1, 10, 2), own=log((10, 3)))
    assert (found.verdict, told(found)) == ("broken", [("not_captured", 1), ("not_in_own_log", 1)])


def test_a_call_that_the_log_lacks_is_suspect_unless_the_harness_was_killed() -> None:
    calls = (call(1, 10, 2), call(2, 14, 3))
    found = health(*calls, own=log((10, 2)))
    assert (found.verdict, told(found)) == ("suspect", [("not_in_own_log", 1)])
    assert health(*calls, own=log((10, 2)), ended_itself=False).verdict == "ok"


@pytest.mark.parametrize(
    "unlogged",
    [
        {"kind": "auxiliary"},
        {"kind": "compaction"},
        {"received": False},
        {"finish_reason": "aborted", "received": False},
    ],
)
def test_the_log_need_not_have_what_is_not_the_agents_or_never_arrived(unlogged: dict[str, Any]) -> None:
    found = health(call(1, 10, 2), call(2, 14, 3, **unlogged), own=log((10, 2)))
    assert not found.has("not_in_own_log", "not_captured")


def test_a_reply_that_two_equal_requests_shared_is_suspect() -> None:
    """Two agents that ask the same at the same time, and nothing in their requests tells them apart."""
    found = health(call(1, 10, 2), own=log((10, 2), (10, 2)))
    assert (found.verdict, told(found)) == ("suspect", [("reply_shared", 1)])


def test_a_harness_may_write_down_half_a_reply_that_broke_off() -> None:
    calls = (call(1, 10, 5, finish_reason="aborted", received=False), call(2, 10, 7))
    assert health(*calls, own=log((10, 0), (10, 7))).verdict == "ok"
    assert told(health(*calls, own=log((10, 6), (10, 7)))) == [("not_captured", 1)]
    assert told(health(*calls, own=log((11, 1), (10, 7)))) == [("not_captured", 1)]


def test_a_message_that_the_gateway_wrote_is_no_reply() -> None:
    found = health(call(1, 10, 2), own=log((10, 2), (0, 0)))
    assert (found.verdict, found.calls, found.own_calls) == ("ok", 1, 1)


def test_an_endpoint_that_counts_no_tokens_cannot_be_compared() -> None:
    counted = call(1, 0, 0, usage=EndpointUsage(30, 7))
    assert health(counted, own=log((30, 7))).verdict == "ok"
    assert health(counted, own=log((30, 8))).verdict == "broken"
    assert health(call(1, 0, 0, usage=EndpointUsage()), own=log((30, 8))).verdict == "ok"


def test_a_log_that_cannot_be_read_is_suspect() -> None:
    found = health(call(1), own_problem="OwnLogError: line 3")
    assert (found.verdict, told(found)) == ("suspect", [("own_log_unreadable", 1)])


def test_refused_calls_are_suspect() -> None:
    found = health(call(1), refusals=3)
    assert (found.verdict, told(found)) == ("suspect", [("calls_refused", 3)])


def results(*errors: bool) -> tuple[Message, ...]:
    return tuple(
        Message("tool", f"result {n}", tool_call_id=f"t{n}", is_error=error) for n, error in enumerate(errors)
    )


def test_tool_errors_are_counted_by_the_dialects_own_field() -> None:
    found = health(call(1, new_messages=results(False, True, False)))
    assert (found.verdict, told(found)) == ("ok", [("tool_errors", 1)])
    assert found.findings[0].detail == "1 of 3 tool results"
    spoken = (Message("tool", "Error: exit code 1", tool_call_id="t1"),)
    assert told(health(call(1, new_messages=spoken))) == []


def test_tools_that_fail_half_of_the_time_are_suspect() -> None:
    found = health(call(1, new_messages=results(True, True, False, False)))
    assert (found.verdict, told(found)) == ("suspect", [("tools_failing", 2)])
    assert told(health(call(1, new_messages=results(True, True)))) == [("tool_errors", 2)], "too few to tell"


def test_a_result_that_comes_again_is_counted_once() -> None:
    messages = results(True, False)
    assert told(health(call(1, new_messages=messages), call(2, new_messages=messages))) == [("tool_errors", 1)]


def uses(*arguments: str) -> Message:
    return Message("assistant", tool_calls=tuple(ToolCall("bash", each) for each in arguments))


def test_the_same_tool_call_three_times_in_a_row_is_a_loop() -> None:
    found = health(*(call(n, response=uses('{"command": "ls"}')) for n in range(3)))
    assert (found.verdict, told(found)) == ("suspect", [("tool_loop", 1)])
    assert found.findings[0].detail == '3 times in a row: bash {"command": "ls"}'
    assert told(health(call(1, response=uses("a", "a", "a", "b", "b", "b", "b")))) == [("tool_loop", 2)]


@pytest.mark.parametrize("arguments", [("a", "a", "b", "a"), ("a", "a")])
def test_fewer_or_others_in_between_are_none(arguments: tuple[str, ...]) -> None:
    assert health(*(call(n, response=uses(each)) for n, each in enumerate(arguments))).verdict == "ok"


def test_calls_of_sub_agents_are_no_loop_of_the_agents() -> None:
    calls = [call(n, response=uses("a"), kind="subagent" if n == 1 else "agent") for n in range(3)]
    assert health(*calls).verdict == "ok"


def test_replies_that_a_limit_cut_off_are_suspect() -> None:
    found = health(call(1, finish_reason="length"), call(2))
    assert (found.verdict, told(found)) == ("suspect", [("truncated", 1)])


def test_the_end_of_a_budget_is_noted() -> None:
    found = health(call(1), ended_by="max_calls")
    assert (found.verdict, told(found)) == ("ok", [("budget_end", 1)])
    assert found.findings[0].detail == "max_calls"


def test_every_problem_can_be_found() -> None:
    """Each name of a problem is one that a session can have."""
    wrong = EXACT.model_copy(update={"exact": False})
    sessions = [
        health(
            *(call(n, response=uses("a"), finish_reason="length", new_messages=results(True)) for n in range(3)),
            certificate=wrong,
            own=log((1, 1)),
            refusals=1,
            ended_by="max_tokens",
        ),
        health(call(1, new_messages=results(True, True, True, True)), certificate=None, own_problem="x"),
        health(call(1), own=log((10, 2), (10, 2))),
    ]
    assert {what for found in sessions for what, _ in told(found)} == set(HEALTH_PROBLEMS)


def test_a_long_detail_is_cut() -> None:
    found = health(*(call(n, response=uses("x" * 10_000)) for n in range(3)))
    assert len(found.findings[0].detail) == 300
    assert msgspec.json.decode(found.model_dump_json())["verdict"] == "suspect"
