"""Calls as the nodes of verifiers' message graph."""

from __future__ import annotations

from typing import Any

import pytest
from stored_calls import LAST, PROMPT, REPLY, RESULT, called_session, session_calls, untaught_session
from stored_groups import GONE, a_session

from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.prime_rl import nodes_of, record_of
from polar.trainers.bridges.sessions import SessionTraces, sessions_of
from polar.types import Stage


def taken(**fields: Any) -> SessionTraces:
    (session,) = sessions_of(Group("t", (called_session(),)), BridgeConfig(**fields))
    return session


def path(nodes: list[dict[str, Any]], leaf: int) -> list[dict[str, Any]]:
    parent = nodes[leaf]["parent"]
    return [*(path(nodes, parent) if parent is not None else []), nodes[leaf]]


def joined(nodes: list[dict[str, Any]], name: str) -> list[Any]:
    return [value for node in nodes for value in node.get(name, [])]


def test_the_tokens_of_a_path_are_what_the_engine_saw() -> None:
    nodes, calls = nodes_of(session_calls(), taken())
    by_call = [joined(path(nodes, call["node"]), "token_ids") for call in calls]
    assert by_call == [[*PROMPT, *REPLY], [9, 16, 17], [7, 8, 15], [*PROMPT, *REPLY, *RESULT, *LAST]]


def test_trained_tokens_are_those_of_the_traces_each_once() -> None:
    session = taken()
    nodes, calls = nodes_of(session_calls(), session)
    assert sum(joined(nodes, "mask")) == sum(item.trace.trainable_tokens for item in session.traces) == 6
    assert not any(nodes[calls[1]["node"]]["mask"]), "the title is auxiliary"
    last = nodes[calls[3]["node"]]
    assert last["mask"] == [False, False, True, True, True] and len(last["logprobs"]) == 3
    alone, _ = nodes_of(session_calls(), taken(kinds=("agent",)))
    assert sum(joined(alone, "mask")) == 5, "without the helper"


def test_messages_stand_once_and_an_echoed_reply_is_the_sampled_node() -> None:
    nodes, calls = nodes_of(session_calls(), taken())
    shown = [node["message"] for node in path(nodes, calls[3]["node"])]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant"]
    assert shown[1]["tool_calls"] == [{"id": "c1", "name": "bash", "arguments": "{}"}]
    assert [node.get("sampled", False) for node in path(nodes, calls[3]["node"])] == [False, True, False, True]
    assert path(nodes, calls[3]["node"])[0]["tools"][0]["name"] == "bash"


def test_a_lost_session_is_not_ok_and_has_no_reward() -> None:
    (lost,) = sessions_of(Group("t", (a_session("t-0", 1.0, failure=GONE),)), BridgeConfig())
    record = record_of(lost, ())
    assert not record["ok"] and record["rewards"] == {"polar": None} and record["stop_condition"] == "error"
    assert record["errors"] == [{"type": "Gone", "message": "engine: the engine is gone"}]
    (without,) = sessions_of(Group("t", (a_session("t-0", None),)), BridgeConfig())
    assert record_of(without, ())["errors"] == [{"type": "LeftOut", "message": "no_reward"}]


def test_a_failed_agent_without_trainable_tokens_is_ok_with_its_reward() -> None:
    (session,) = sessions_of(Group("t", (untaught_session(),)), BridgeConfig())
    record = record_of(session, session_calls())
    assert record["ok"] and record["rewards"] == {"polar": {"score": 0.0}}
    assert record["stop_condition"] == "harness_error" and record["errors"][0]["type"] == "Exited"
    assert sum(node.get("sampled", False) for node in record["nodes"]) == 4, (
        "an empty trace is an error of prime-rl"
    )
    assert not any(joined(record["nodes"], "mask"))


@pytest.mark.parametrize(
    ("max_tokens", "branches"),
    [
        (10, [[*PROMPT, *REPLY, *RESULT, *LAST], [9, 16, 17], [7, 8, 15]]),
        (8, [[*PROMPT, *REPLY, *RESULT, *LAST[:1]], [9, 16, 17], [7, 8, 15]]),
        (6, [[*PROMPT, *REPLY, *RESULT[:1]], [9, 16, 17], [7, 8, 15]]),
        (5, [[*PROMPT, *REPLY], [9, 16, 17], [7, 8, 15]]),
        (2, [PROMPT[:2], [9, 16], [7, 8]]),
    ],
)
def test_the_end_of_a_long_branch_is_cut(max_tokens: int, branches: list[list[int]]) -> None:
    session = taken(max_tokens=max_tokens)
    nodes, calls = nodes_of(session_calls(), session, max_tokens)
    leaves = {*range(len(nodes))} - {node["parent"] for node in nodes}
    found = [joined(path(nodes, leaf), "token_ids") for leaf in leaves]
    assert sorted(found) == sorted(branches)
    assert sum(joined(nodes, "mask")) == sum(item.trace.trainable_tokens for item in session.traces)
    assert len(joined(nodes, "logprobs")) == sum(joined(nodes, "mask"))
    assert len(calls) == (4 if max_tokens > 5 else 3)
    stop = record_of(session, session_calls(), max_tokens)["stop_condition"]
    assert stop == ("agent_completed" if max_tokens == 10 else "max_total_tokens")


@pytest.mark.parametrize(
    ("fields", "stop"),
    [
        ({"ended_by": "max_calls"}, "max_turns"),
        ({"ended_by": "max_tokens"}, "max_output_tokens"),
        ({"stage": Stage.TIMED_OUT}, "agent_timeout"),
        ({}, "agent_completed"),
    ],
)
def test_the_end_of_a_session_has_verifiers_name(fields: dict[str, Any], stop: str) -> None:
    (session,) = sessions_of(Group("t", (a_session("t-0", 0.0, **fields),)), BridgeConfig())
    assert record_of(session, ())["stop_condition"] == stop
