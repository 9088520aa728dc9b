"""A renderer, tried out before anything relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from talk import Talk, tool_result, user

from polar.tokens.preflight.checks import preflight, without_bridges
from polar.tokens.preflight.probes import APPENDED
from polar.tokens.renderers.family import FamilyRenderer
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Message, TokenIds, Tool, token_ids


class Altered:
    """A renderer with one fault."""

    def __init__(self, inner: SmolLM2Renderer, **methods: Any) -> None:
        self._inner = inner
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def failed(renderer: Any) -> dict[str, str]:
    return {finding.probe: finding.detail for finding in preflight(renderer).findings if not finding.passed}


def test_the_default_renderer_is_proven_for_everything(smollm2: SmolLM2Renderer) -> None:
    report = preflight(smollm2)
    assert report.bridges and report.problems == []
    bridges = [finding for finding in report.findings if finding.about == "bridge"]
    assert {finding.state for finding in bridges} == {"ok"}, "every bridge is offered"


@pytest.mark.parametrize("retention", ["preserve", "template", "strip"])
def test_a_real_family_is_proven_whatever_it_keeps(qwen3: FamilyRenderer, retention: Any) -> None:
    report = preflight(qwen3.retaining(retention))
    assert report.bridges and report.problems == []


def test_a_template_that_cuts_thinking_does_not_offer_what_it_would_rewrite(qwen3: FamilyRenderer) -> None:
    details = {f.probe: f.detail for f in preflight(qwen3.retaining("template")).findings}
    assert details["bridge to tool"] == "" and "not offered" in details["bridge to user"]


def test_a_template_that_rewrites_earlier_turns_is_reported_by_role(qwen3: FamilyRenderer) -> None:
    found = {f.probe: f for f in preflight(qwen3).findings if f.about == "prefix"}
    assert {probe: finding.state for probe, finding in found.items()} == {
        "stays when followed by user": "noted",
        "stays when followed by tool": "ok",
        "stays when followed by tool and user": "noted",
        "stays when followed by system": "noted",
    }
    assert "where '<think>" in found["stays when followed by user"].detail


def test_what_stands_between_turns_is_reported(qwen3: FamilyRenderer) -> None:
    (boundary,) = (f for f in preflight(qwen3).findings if f.about == "boundary")
    assert boundary.detail == (
        "a turn ends with '<|im_end|>' (151645), the template continues with '\\n<|im_start|>user\\n'; "
        "a reply also stops at '<|endoftext|>' (151643)"
    )


def test_a_parser_is_tried_on_all_that_its_template_writes(qwen3: FamilyRenderer) -> None:
    states = {f.probe: f.state for f in preflight(qwen3).findings if f.about == "parser"}
    assert states == dict.fromkeys(
        (
            "reads its own text",
            "reads its own tool call",
            "reads its own two tool calls",
            "reads its own thinking",
        ),
        "ok",
    )


def test_a_bridge_that_forgets_a_newline_is_found_out(smollm2: SmolLM2Renderer) -> None:
    def bridge(*arguments: Any) -> TokenIds:
        bridged = smollm2.bridge(*arguments)
        assert bridged is not None
        return bridged[1:]

    renderer = Altered(smollm2, bridge=bridge)
    assert set(failed(renderer)) == {f"bridge to {role}" for role in APPENDED} | {"bridge from a cut reply"}
    assert "differs at token 0" in failed(renderer)["bridge to user"]
    assert not preflight(renderer).bridges


def test_a_prompt_that_the_conversation_does_not_begin_with_is_reported(smollm2: SmolLM2Renderer) -> None:
    """Tokens that stand in the prompt for the next turn and not in the history of it."""

    def render(messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        return smollm2.render(messages, tools) + smollm2.encode("<think></think>")

    renderer = Altered(smollm2, render=render)
    assert "<think>" in failed(renderer)["same beginning"]


def test_a_parser_that_does_not_fit_is_reported(smollm2: SmolLM2Renderer) -> None:
    renderer = Altered(smollm2, parse=lambda *_: Message(role="assistant", content="?"))
    assert set(failed(renderer)) == {f"reads its own {what}" for what in ("text", "tool call", "two tool calls")}
    assert preflight(renderer).bridges, "a reply that is read badly is still continued in its own tokens"


def test_a_turn_without_an_end_cannot_be_bridged(smollm2: SmolLM2Renderer) -> None:
    renderer = Altered(smollm2, stop_ids=())
    assert "does not end a turn with a stop id" in failed(renderer)["bridge to tool"]


def test_a_template_that_refuses_a_role_is_a_finding_and_no_crash(smollm2: SmolLM2Renderer) -> None:
    def render(messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        if any(message.role == "system" for message in messages[1:]):
            raise ValueError("system message must come first")
        return smollm2.render(messages, tools)

    assert failed(Altered(smollm2, render=render)) == {
        "bridge to system": "ValueError: system message must come first"
    }


def test_a_family_that_is_not_proven_forks_at_every_turn(smollm2: SmolLM2Renderer) -> None:
    talk = Talk(without_bridges(smollm2))
    first = talk.say([user("go")], [*smollm2.encode("One"), smollm2.stop_ids[0]])
    prompt = talk.ask([user("go"), first.response, tool_result("x")])
    assert (prompt.parent_id, prompt.continues, prompt.break_reason) == (first.call_id, False, "bridge_refused")
    assert without_bridges(smollm2).retaining("strip").bridge(token_ids(), token_ids(), [], []) is None
