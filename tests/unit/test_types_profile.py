"""What a harness says of its calls."""

from __future__ import annotations

from starlette.datastructures import Headers

from polar.types import CallProfile, KindRule

PROFILE = CallProfile(
    kind_without_tools="auxiliary",
    kind_rules=(
        KindRule("x-turn", "compaction", r'"kind":\s*"compaction"'),
        KindRule("x-agent-id", "subagent"),
    ),
    attribution_headers=("x-session", "x-agent-id"),
)


def kind(headers: dict[str, str], *, has_tools: bool = True) -> str:
    return PROFILE.kind_of(Headers(headers), has_tools=has_tools)


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
    assert CallProfile().kind_of({}, has_tools=False) == "agent"


def test_attribution_is_the_named_headers_in_order() -> None:
    assert PROFILE.attribution(Headers({"X-Agent-Id": "a", "x-other": "b"})) == ("", "a")
    assert CallProfile().attribution(Headers({"x-agent-id": "a"})) == ()
