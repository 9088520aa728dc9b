"""What a harness says of its calls."""

from __future__ import annotations

from starlette.datastructures import Headers

from polar.types import CallProfile, HeaderRule, LastWordRule, Message, Tool, ToolRule

PROFILE = CallProfile(
    kind_without_tools="auxiliary",
    kind_rules=(
        HeaderRule("x-turn", "compaction", r'"kind":\s*"compaction"'),
        HeaderRule("x-agent-id", "subagent"),
    ),
    attribution_headers=("x-session", "x-agent-id"),
)


def kind(headers: dict[str, str], *, has_tools: bool = True) -> str:
    return PROFILE.kind_of(Headers(headers), tools=(Tool("bash"),) if has_tools else ())


def test_a_header_says_what_a_call_is_for() -> None:
    assert kind({"X-Turn": '{"kind": "compaction"}'}) == "compaction"
    assert kind({"X-Turn": '{"kind": "turn"}'}) == "agent"
    assert kind({"x-agent-id": ""}) == "subagent"


def test_the_first_rule_that_applies_decides() -> None:
    assert kind({"x-agent-id": "a", "x-turn": '{"kind":"compaction"}'}) == "compaction"


def test_without_a_rule_tools_tell_the_agent_from_its_chores() -> None:
    assert kind({}) == "agent"
    assert kind({}, has_tools=False) == "auxiliary"
    assert kind({"x-agent-id": "a"}, has_tools=False) == "subagent"
    assert CallProfile().kind_of({}) == "agent"


def test_attribution_is_the_named_headers_in_order() -> None:
    assert PROFILE.attribution(Headers({"X-Agent-Id": "a", "x-other": "b"})) == ("", "a")
    assert CallProfile().attribution(Headers({"x-agent-id": "a"})) == ()


def test_a_tool_tells_whose_call_it_is() -> None:
    offered = CallProfile(kind_rules=(ToolRule("complete_task", "subagent"),))
    assert offered.kind_of({}, tools=(Tool("bash"), Tool("complete_task"))) == "subagent"
    assert offered.kind_of({}, tools=(Tool("bash"),)) == "agent"


def test_a_tool_that_is_missing_tells_it_too() -> None:
    """But not where no tools are offered at all: that is a sign of its own."""
    missing = CallProfile(
        kind_without_tools="compaction", kind_rules=(ToolRule("get_goal", "subagent", offered=False),)
    )
    assert missing.kind_of({}, tools=(Tool("bash"),)) == "subagent"
    assert missing.kind_of({}, tools=(Tool("bash"), Tool("get_goal"))) == "agent"
    assert missing.kind_of({}) == "compaction"


def test_the_last_words_tell_it_where_the_user_says_them() -> None:
    profile = CallProfile(kind_rules=(LastWordRule(r"\AWrite a summary", "compaction"),))
    asked = Message("user", "Write a summary of this.")
    later = Message("assistant", "Write a summary of what?")
    assert profile.kind_of({}, (Message("user", "go"), asked)) == "compaction"
    assert profile.kind_of({}, (Message("user", "Please. Write a summary"),)) == "agent"
    assert profile.kind_of({}, (asked, later, Message("tool", "Write a summary"))) == "agent", "not the last word"
    assert profile.kind_of({}, ()) == "agent"
