"""Near matches: what must not attach, what may, and which of several calls is meant."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from talk import Talk, assistant, system, user

from polar.tokens.forest import CallForest
from polar.tokens.matching import message_key
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.replies.reply_text import parse_tool_calls
from polar.types import Message, Tool, ToolCall

START = [system("S"), user("go")]


@pytest.fixture
def talk(smollm2: SmolLM2Renderer) -> Talk:
    return Talk(smollm2)


def sampled(renderer: SmolLM2Renderer, text: str) -> list[int]:
    return [*renderer._vocabulary.encode(text), renderer.stop_ids[0]]  # pyright: ignore[reportPrivateUsage]


class TestReasoning:
    def test_an_example_with_other_reasoning_is_another_conversation(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        """The stored reasoning is authoritative only where we sampled it."""
        shown = [system("S"), user("2+2?"), assistant("4", reasoning="two and two"), user("3+3?")]
        reply = talk.say(shown, sampled(smollm2, "6"))
        again = list(shown)
        again[2] = assistant("4", reasoning="I guess")
        assert talk.ask([*shown, reply.response, user("thanks")]).parent_id == "c1"
        assert talk.ask([*again, reply.response, user("thanks")]).parent_id is None

    def test_an_edited_turn_keeps_its_reasoning_too(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say(START, sampled(smollm2, "One"))
        edited = [*START, first.response, user("a"), assistant("Other", reasoning="x"), user("b")]
        second = talk.say(edited, sampled(smollm2, "Two"))
        assert talk.ask([*edited, second.response, user("c")]).parent_id == "c2"
        edited[4] = assistant("Other", reasoning="y")
        assert talk.ask([*edited, second.response, user("c")]).parent_id == "c1"

    def test_our_own_reply_may_come_back_without_it_at_any_depth(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        first = talk.say(START, sampled(smollm2, "One"))
        kept = Message(role="assistant", content="One", reasoning="kept")
        second = talk.say([*START, kept, user("a")], sampled(smollm2, "Two"))
        assert talk.ask([*START, first.response, user("a"), second.response, user("b")]).parent_id == "c2"


class TestSiblings:
    def test_a_received_reply_is_preferred_to_a_later_one(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        for _ in range(3):
            talk.say(START, sampled(smollm2, "Same"))
        talk.forest.mark_received("c1")
        assert talk.ask([*START, assistant("Same"), user("x")]).parent_id == "c1"
        talk.forest.mark_received("c2")
        assert talk.ask([*START, assistant("Same"), user("x")]).parent_id == "c2"

    def test_the_deepest_call_wins_over_a_received_one(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say(START, sampled(smollm2, "One"))
        talk.forest.mark_received("c1")
        history = [*START, first.response, user("a")]
        second = talk.say(history, sampled(smollm2, "Two"))
        assert talk.ask([*history, second.response, user("b")]).parent_id == "c2"


class TestEqualReplies:
    def test_the_ids_of_tool_calls_tell_which_one_is_meant(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        """Two agents side by side that say the same: only the ids in their replies differ."""
        text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        first, second = (talk.answer(talk.ask(START), sampled(smollm2, text)) for _ in range(2))
        for call in (first, second):
            assert talk.ask([*START, call.response, user("go on")]).parent_id == call.call_id

    def test_ids_further_up_tell_equal_branches_apart(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        """Both agents then got the same message and gave the same reply, without a tool call."""
        text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        first, second = (talk.answer(talk.ask(START), sampled(smollm2, text)) for _ in range(2))
        histories = [[*START, call.response, user("no such tool")] for call in (first, second)]
        ends = [talk.say(history, sampled(smollm2, "Done")) for history in histories]
        assert [end.parent_id for end in ends] == ["c1", "c2"]
        for history, end in zip(histories, ends, strict=True):
            assert talk.ask([*history, assistant("Done"), user("x")]).parent_id == end.call_id

    def test_a_result_names_its_call_where_the_echo_does_not(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        calls = [talk.answer(talk.ask(START), sampled(smollm2, text)) for _ in range(2)]
        for call in calls:
            (tool_call,) = call.response.tool_calls
            echo = replace(call.response, tool_calls=(replace(tool_call, call_id=""),))
            result = Message("tool", "ok", tool_call_id=tool_call.call_id)
            assert talk.ask([*START, echo, result]).parent_id == call.call_id

    def test_reasoning_that_is_left_out_says_nothing_against_the_ids(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        """A harness that drops reasoning means the call it names, not the one that had none to drop."""
        text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
        first, second = (talk.answer(talk.ask(START), sampled(smollm2, text)) for _ in range(2))
        other = CallForest()
        other.add(first)
        other.add(replace(second, response=replace(second.response, reasoning="hm")))
        other.mark_received("c1")
        attachment = other.find([*START, second.response, user("go on")], ())
        assert attachment.parent is not None and attachment.parent.call.call_id == "c2"
        assert attachment.tolerances == ("reasoning_dropped",)

    def test_results_that_name_other_calls_are_noted(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say(START, sampled(smollm2, '<tool_call>{"name": "f", "arguments": {}}</tool_call>'))
        history = [*START, first.response, Message("tool", "ok", tool_call_id="call_1_0")]
        talk.say(history, sampled(smollm2, "Done"))
        history[-1] = Message("tool", "ok", tool_call_id="another")
        prompt = talk.ask([*history, assistant("Done"), user("x")])
        assert prompt.parent_id == "c2" and "ids_renamed" in prompt.tolerant


class TestStructure:
    def test_a_boundary_between_messages_is_no_matter_of_text(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        talk.say([user("a"), user("b")], sampled(smollm2, "One"))
        for other in ([user("ab")], [user('a"]["user","b')], [user("a\nb")]):
            assert talk.ask([*other, assistant("One"), user("x")]).parent_id is None

    def test_tools_in_another_order_are_another_prompt(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        a, b = Tool(name="a"), Tool(name="b")
        talk.tools = (a, b)
        reply = talk.say(START, sampled(smollm2, "One"))
        history = [*START, reply.response, user("x")]
        assert talk.prompts.prepare(history, (b, a)).break_reason == "tools_changed"
        assert talk.prompts.prepare(history, (a, b)).parent_id == "c1"

    def test_a_request_that_ends_with_our_reply_is_no_continuation_of_it(
        self, talk: Talk, smollm2: SmolLM2Renderer
    ) -> None:
        reply = talk.say(START, sampled(smollm2, "One"))
        prompt = talk.ask([*START, reply.response])
        assert (prompt.parent_id, prompt.continues) == (None, False)

    def test_an_empty_reply_can_be_continued(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        reply = talk.say(START, list(smollm2.stop_ids))
        prompt = talk.ask([*START, reply.response, user("say something")])
        assert prompt.continues and prompt.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"]


class TestEmptyTurns:
    """An empty turn that a harness keeps in its history after a reply was cut off."""

    def test_it_does_not_stand_between_a_call_and_what_follows(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        first = talk.say(START, sampled(smollm2, "Done."))
        edited = [*START, assistant(""), first.response, user("more")]
        prompt = talk.ask(edited)
        assert (prompt.parent_id, prompt.continues) == (first.call_id, True)
        assert "empty_turn" in prompt.tolerant
        second = talk.answer(prompt, sampled(smollm2, "Yes."))
        assert talk.ask([*edited, second.response, user("end")]).continues

    def test_one_that_was_sampled_so_is_a_turn(self, talk: Talk, smollm2: SmolLM2Renderer) -> None:
        empty = talk.say(START, list(smollm2.stop_ids))
        prompt = talk.ask([*START, empty.response, user("more")])
        assert prompt.parent_id == empty.call_id and "empty_turn" not in prompt.tolerant


class TestStrangeToolCalls:
    @pytest.mark.parametrize(
        "text",
        [
            '<tool_call>{"name": "\\udc00x", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
            "<tool_call>" + '{"a":' * 5000,
            r'<tool_call>{"name": "f", "arguments": {"a": "\ud800"}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
        ],
        ids=["half a character", "not a number", "endless", "half a character inside", "beyond all numbers"],
    )
    def test_what_is_no_json_for_others_stays_in_the_content(self, text: str) -> None:
        assert parse_tool_calls(text) == Message(role="assistant", content=text)

    def test_a_key_in_disguise_still_gives_arguments_that_can_be_sent(self) -> None:
        text = r'<tool_call>{"name": "f", "\u0061rguments": {"a": "\u00e9"}}</tool_call>'
        (call,) = parse_tool_calls(text).tool_calls
        assert call == ToolCall(name="f", arguments=r'{"a": "\u00e9"}')

    def test_deep_arguments_have_a_key(self) -> None:
        deep = '{"a":' + "[" * 400 + "]" * 400 + "}"
        keys = {
            message_key(Message(role="assistant", tool_calls=(ToolCall(name="f", arguments=arguments),)))
            for arguments in (deep, deep, f"{deep} ")
        }
        assert len(keys) == 2
