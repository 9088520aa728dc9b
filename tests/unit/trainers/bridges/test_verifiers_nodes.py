"""Calls as the nodes of verifiers' message graph."""

from __future__ import annotations

from typing import Any

from stored_calls import LAST, PROMPT, REPLY, RESULT, called_session, session_calls
from stored_groups import GONE, a_session

from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.prime_rl import nodes_of, record_of
from polar.trainers.bridges.sessions import SessionTraces, sessions_of

TASK = {"type": "Task", "data": {"prompt": "Do it."}}


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
    record = record_of(lost, (), TASK)
    assert not record["ok"] and record["rewards"] == {"polar": None}
    assert record["errors"] == [{"type": "Gone", "message": "engine: the engine is gone"}]
    (without,) = sessions_of(Group("t", (a_session("t-0", None),)), BridgeConfig())
    assert record_of(without, (), TASK)["errors"] == [{"type": "LeftOut", "message": "no_reward"}]
