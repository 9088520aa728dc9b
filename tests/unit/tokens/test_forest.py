"""Where a request attaches, and that what was sampled stays as it was sampled."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from talk import Talk, assistant, system, tool_result, user

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.sequences import digest_of
from polar.types import Message, Tool, ToolCall

START = [system("S"), user("go")]


@pytest.fixture
def talk(smollm2: SmolLM2Renderer) -> Talk:
    return Talk(smollm2)


def spell(renderer: SmolLM2Renderer, text: str) -> list[int]:
    """The text one character at a time, which is never how the tokenizer would split it, and a stop token."""
    ids = [i for char in text for i in renderer._vocabulary.encode(char)]  # pyright: ignore[reportPrivateUsage]
    return [*ids, renderer.stop_ids[0]]


def test_the_first_call_is_a_root_without_a_reason(talk: Talk) -> None:
    prompt = talk.ask(START)
    assert (prompt.parent_id, prompt.continues, prompt.break_reason) == (None, False, "")
    assert prompt.new_prompt_ids == prompt.prompt_ids
    assert prompt.new_messages == tuple(START)


def test_the_next_turn_keeps_a_split_no_tokenizer_would_make(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    first = talk.say(START, spell(smollm2, "Hello there"))
    prompt = talk.ask([*START, first.response, user("more")])
    assert prompt.continues and prompt.parent_id == "c1" and prompt.break_reason == ""
    assert prompt.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"]
    assert prompt.prompt_ids == talk.full["c1"] + prompt.new_prompt_ids
    assert prompt.prompt_digest == digest_of(prompt.prompt_ids)
    assert prompt.new_messages == (first.response, user("more"))


def test_a_chain_grows_by_its_new_tokens_only(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    history = list(START)
    for turn in range(5):
        call = talk.say(history, spell(smollm2, f"Turn {turn}"))
        history += [call.response, tool_result("ok")]
    prompt = talk.ask(history)
    assert prompt.parent_id == "c5"
    assert len(prompt.new_prompt_ids) < 20
    assert prompt.prompt_digest == digest_of(prompt.prompt_ids)


def test_a_reformatted_echo_still_attaches_and_is_named(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    first = talk.say(START, spell(smollm2, 'Ok.<tool_call>{"name": "bash", "arguments": {"a":1}}</tool_call>'))
    assert first.response.tool_calls[0].arguments == '{"a":1}'
    echo = Message(
        role="assistant", content="Ok.", tool_calls=(ToolCall(name="bash", arguments='{ "a": 1 }', call_id="x"),)
    )
    prompt = talk.ask([*START, echo, tool_result("done")])
    assert prompt.continues
    assert prompt.tolerant == ("arguments_reformatted", "ids_renamed")
    assert prompt.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"]


def test_an_edited_echo_forks_at_the_last_true_call(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    first = talk.say(START, spell(smollm2, "One"))
    history = [*START, first.response, user("again")]
    talk.say(history, spell(smollm2, "Two"))
    prompt = talk.ask([*history, assistant("Two, but edited"), user("more")])
    assert prompt.parent_id == "c1" and prompt.continues
    assert prompt.break_reason == "history_edited"
    assert smollm2.decode(prompt.prompt_ids).endswith(
        "Two, but edited<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_retry_becomes_a_sibling(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    first = talk.say(START, spell(smollm2, "One"))
    history = [*START, first.response, user("again")]
    talk.say(history, spell(smollm2, "Two"))
    twin = talk.ask(history)
    assert twin.parent_id == "c1" and twin.continues
    assert talk.ask(START).break_reason == "resampled"


def test_of_equal_replies_the_latest_is_continued(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    talk.say(START, spell(smollm2, "Same"))
    talk.say(START, spell(smollm2, "Same"))
    assert talk.ask([*START, assistant("Same"), user("x")]).parent_id == "c2"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([system("another"), user("go")], "system_changed"),
        ([system("S"), user("something else"), assistant("One"), user("x")], "history_rewritten"),
    ],
)
def test_a_new_root_says_why(talk: Talk, smollm2: SmolLM2Renderer, messages: list[Message], reason: str) -> None:
    talk.say(START, spell(smollm2, "One"))
    prompt = talk.ask(messages)
    assert (prompt.parent_id, prompt.break_reason) == (None, reason)


def test_other_tools_start_a_new_root(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    first = talk.say(START, spell(smollm2, "One"))
    prompt = talk.prompts.prepare([*START, first.response, user("x")], (Tool(name="t"),))
    assert (prompt.parent_id, prompt.break_reason) == (None, "tools_changed")


def test_an_aborted_reply_has_no_end_to_attach_to(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    call = talk.answer(talk.ask(START), spell(smollm2, "Half"), finish="aborted")
    prompt = talk.ask([*START, call.response, user("x")])
    assert prompt.parent_id is None


def test_a_truncated_reply_is_continued_with_a_close_that_is_context(talk: Talk, smollm2: SmolLM2Renderer) -> None:
    ids = spell(smollm2, "Cut off here")[:-1]
    call = talk.answer(talk.ask(START), ids, finish="length")
    prompt = talk.ask([*START, call.response, user("go on")])
    assert prompt.continues
    assert prompt.new_prompt_ids[0] == smollm2.stop_ids[0]


class _NeverBridges(SmolLM2Renderer):
    def bridge(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


async def test_a_family_that_cannot_bridge_forks_with_a_reason() -> None:
    renderer = _NeverBridges(SmolLM2Renderer.Options())
    await renderer.load()
    talk = Talk(renderer)
    first = talk.say(START, spell(renderer, "One"))
    prompt = talk.ask([*START, first.response, user("x")])
    assert (prompt.parent_id, prompt.continues, prompt.break_reason) == ("c1", False, "bridge_refused")
    assert prompt.new_messages == (first.response, user("x"))
    second = talk.answer(prompt, spell(renderer, "Two"))
    third = talk.ask([*START, first.response, user("x"), second.response, user("y")])
    assert third.parent_id == "c2"


TEXTS = st.text(min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_harness_does_a_continued_prompt_begins_with_what_was_sampled(
    smollm2: SmolLM2Renderer, data: st.DataObject
) -> None:
    """Branches, retries, edits, truncations and compactions at random."""
    talk = Talk(smollm2)
    histories: list[list[Message]] = [list(START)]
    for _ in range(data.draw(st.integers(2, 7))):
        history = list(data.draw(st.sampled_from(histories)))
        if len(history) > 3 and data.draw(st.booleans()):
            history[data.draw(st.integers(1, len(history) - 1))] = assistant(data.draw(TEXTS))
        if history[-1].role == "assistant":
            history.append(user(data.draw(TEXTS)))
        prompt = talk.ask(history)
        assert prompt.prompt_digest == digest_of(prompt.prompt_ids)
        if prompt.continues:
            stored = talk.full[prompt.parent_id or ""]
            assert prompt.prompt_ids == stored + prompt.new_prompt_ids
        else:
            assert prompt.prompt_ids == smollm2.render(history, ())
        completion = spell(smollm2, data.draw(TEXTS))
        finish = data.draw(st.sampled_from(["stop", "length", "aborted"]))
        call = talk.answer(prompt, completion if finish == "stop" else completion[:-1], finish)
        histories.append([*history, call.response, user(data.draw(TEXTS))])
