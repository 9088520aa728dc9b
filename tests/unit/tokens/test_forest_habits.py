"""Histories that a harness has edited: they continue the stored tokens and list the tolerances, or they fork."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from talk import Talk, assistant, system, tool_result, user

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import ArgumentRewrite, Matching, Message, Tool, ToolCall, VolatileLine

EDIT = Tool(
    "edit",
    parameters={
        "properties": {"path": {"type": "string"}, "all": {"type": "boolean", "default": False}},
        "required": ["path"],
    },
)
TOUCHING = Matching(
    volatile_lines=(VolatileLine("system", r"Today is \w+\."),),
    adds_defaults=True,
    coerces_arguments=True,
    argument_rewrites=(ArgumentRewrite("edit", "path", r"\A(?:\./)+"),),
    lowers_tool_names=True,
)
MONDAY, TUESDAY = system("Be kind.\nToday is Monday."), system("Be kind.\nToday is Tuesday.")
GO = user("go")


@pytest.fixture
def talk(smollm2: SmolLM2Renderer) -> Talk:
    return Talk(smollm2, (EDIT,), TOUCHING)


def sampled(renderer: SmolLM2Renderer, text: str) -> list[int]:
    return [*renderer._vocabulary.encode(text), renderer.stop_ids[0]]  # pyright: ignore[reportPrivateUsage]


def calling(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def touched(reply: Message, arguments: dict[str, Any], name: str = "edit") -> Message:
    """A reply as the harness sends it back, its one call written anew."""
    (call,) = reply.tool_calls
    return replace(reply, tool_calls=(ToolCall(name, json.dumps(arguments), call.call_id),))


class TestTolerated:
    @pytest.mark.parametrize(
        ("called", "again", "tolerances"),
        [
            (("edit", {"path": "a"}), {"path": "a", "all": False}, "default_arguments"),
            (("edit", {"path": "a", "all": "true"}), {"path": "a", "all": True}, "arguments_coerced"),
            (("edit", {"path": "./a"}), {"path": "a"}, "argument_rewritten"),
            (("EDIT", {"path": "a"}), {"path": "a"}, "name_lowered"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_call_that_was_touched_up_goes_on(
        self,
        called: tuple[str, dict[str, Any]],
        again: dict[str, Any],
        tolerances: str,
        talk: Talk,
        smollm2: SmolLM2Renderer,
    ) -> None:
        first = talk.say([MONDAY, GO], sampled(smollm2, calling(*called)))
        history = [MONDAY, GO, touched(first.response, again), tool_result("done")]
        prompt = talk.ask(history)
        assert (prompt.parent_id, prompt.continues, prompt.break_reason) == ("c1", True, "")
        assert prompt.tolerant == (tolerances,)
        assert prompt.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"], "what the model wrote, as it wrote it"
        second = talk.answer(prompt, sampled(smollm2, "Done."))
        assert talk.ask([*history, second.response, user("more")]).parent_id == "c2", "and at any depth"

    def test_another_day_keeps_the_first_days_tokens(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say([MONDAY, GO], sampled(smollm2, "One"))
        history = [TUESDAY, GO, first.response, user("more")]
        prompt = talk.ask(history)
        assert (prompt.parent_id, prompt.continues, prompt.tolerant) == ("c1", True, ("volatile_line",))
        assert "Monday" in smollm2.decode(prompt.prompt_ids) and "Tuesday" not in smollm2.decode(prompt.prompt_ids)
        second = talk.answer(prompt, sampled(smollm2, "Two"))
        later = talk.ask([*history, second.response, user("end")])
        assert (later.parent_id, later.tolerant) == ("c2", ("volatile_line",)), "the context still is Monday's"

    def test_a_day_that_has_not_changed_is_not_overlooked(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say([MONDAY, GO], sampled(smollm2, "One"))
        assert talk.ask([MONDAY, GO, first.response, user("more")]).tolerant == ()

    def test_of_two_equal_replies_the_one_of_the_same_day_is_meant(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        for day in (MONDAY, TUESDAY, TUESDAY, MONDAY):
            talk.say([day, GO], sampled(smollm2, "Same"))
        assert talk.ask([TUESDAY, GO, assistant("Same"), user("more")]).parent_id == "c3"
        assert talk.ask([MONDAY, GO, assistant("Same"), user("more")]).parent_id == "c4"

    def test_of_two_equal_replies_the_one_that_was_spelled_so_is_meant(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        plain = talk.say([MONDAY, GO], sampled(smollm2, calling("edit", {"path": "a"})))
        talk.say([MONDAY, GO], sampled(smollm2, calling("edit", {"path": "./a"})))
        (call,) = plain.response.tool_calls
        echo = replace(plain.response, tool_calls=(replace(call, call_id="renamed"),))
        assert talk.ask([MONDAY, GO, echo, tool_result("done")]).parent_id == "c1"


class TestForked:
    @pytest.mark.parametrize(
        ("name", "again"),
        [
            ("edit", {"path": "b"}),
            ("edit", {"path": "a", "all": True}),
            ("edit", {"path": "a", "other": False}),
            ("edit", {}),
            ("invalid", {"tool": "edit", "error": "it has no such argument"}),
        ],
        ids=["another value", "not the default", "an argument more", "one less", "another tool"],
    )
    def test_another_call_is_not_the_one_we_sampled(
        self, name: str, again: dict[str, Any], talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        """Earlier tokens stay; the rewritten turn is context, which is not trained on."""
        before = talk.say([MONDAY, GO], sampled(smollm2, "I begin."))
        history = [MONDAY, GO, before.response, user("do it")]
        called = talk.say(history, sampled(smollm2, calling("edit", {"path": "a"})))
        prompt = talk.ask([*history, touched(called.response, again, name), tool_result("done")])
        assert (prompt.parent_id, prompt.break_reason) == ("c1", "history_edited")
        assert prompt.prompt_ids[: len(talk.full["c2"])] != talk.full["c2"]

    def test_a_first_turn_that_was_rewritten_starts_anew(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        called = talk.say([MONDAY, GO], sampled(smollm2, calling("no_such_tool", {"path": "a"})))
        rewritten = touched(called.response, {"tool": "no_such_tool", "error": "unknown"}, "invalid")
        prompt = talk.ask([MONDAY, GO, rewritten, tool_result("done")])
        assert (prompt.parent_id, prompt.break_reason) == (None, "history_rewritten")

    def test_another_system_prompt_is_another_root_whatever_the_day(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        first = talk.say([MONDAY, GO], sampled(smollm2, "One"))
        other = system("Be rude.\nToday is Monday.")
        prompt = talk.ask([other, GO, first.response, user("more")])
        assert (prompt.parent_id, prompt.break_reason) == (None, "system_changed")

    def test_a_schema_with_another_default_is_another_root(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say([MONDAY, GO], sampled(smollm2, calling("edit", {"path": "a"})))
        talk.tools = (Tool("edit", parameters={"properties": {"all": {"default": True}}}),)
        prompt = talk.ask([MONDAY, GO, touched(first.response, {"path": "a", "all": True}), tool_result("done")])
        assert (prompt.parent_id, prompt.break_reason) == (None, "tools_changed")

    @pytest.mark.parametrize("matching", [Matching(), None], ids=["an empty rule", "no rule"])
    def test_without_a_profile_nothing_of_this_is_overlooked(
        self, matching: Matching | None, smollm2: SmolLM2Renderer
    ) -> None:
        talk = Talk(smollm2, (EDIT,), matching)
        first = talk.say([MONDAY, GO], sampled(smollm2, calling("edit", {"path": "a"})))
        again = touched(first.response, {"path": "a", "all": False})
        assert talk.ask([MONDAY, GO, again, tool_result("done")]).parent_id is None
        assert talk.ask([TUESDAY, GO, first.response, tool_result("done")]).break_reason == "system_changed"
