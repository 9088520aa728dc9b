"""What became of a reply that an engine rendered again: the same tokens, the same text, or another text."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from talk import Talk, user

from polar.testing import encoder_of, split_once
from polar.tokens.drift import Departure, compared, drifted, explained
from polar.tokens.forest import Prompt
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Message, TokenIds, token_ids

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)


def next_prompt(renderer: SmolLM2Renderer, sampled: TokenIds, rendered: str) -> Prompt | Departure:
    """A reply is sampled, and the template writes `rendered` for it in the next prompt."""
    talk = Talk(renderer)
    first = talk.answer(talk.ask([user("hello")]), [*sampled, renderer.stop_ids[0]])
    again = [user("hello"), Message(role="assistant", content=rendered), user("go on")]
    sent = [user("hello"), first.response, user("go on")]
    return compared(talk.forest, talk.forest.find(sent, ()), renderer.render(again, ()))


def classified(renderer: SmolLM2Renderer, found: Prompt | Departure) -> Prompt:
    if isinstance(found, Prompt):
        return found
    return explained(found, renderer.decode(found.expected_ids), renderer.decode(found.found_ids))


@given(text=texts)
def test_only_other_tokens_for_the_same_text_are_retokenised(smollm2: SmolLM2Renderer, text: str) -> None:
    assume(text == text.strip())
    whole = smollm2.encode(text)
    sampled = token_ids(split_once(encoder_of(smollm2._vocabulary), text))  # pyright: ignore
    prompt = classified(smollm2, next_prompt(smollm2, sampled, text))
    if sampled == whole:
        assert prompt.continues and prompt.drift is None
    else:
        assert prompt.drift is not None and prompt.drift.kind == prompt.break_reason == "retokenised"


@given(text=texts, other=texts)
def test_another_text_is_rewritten(smollm2: SmolLM2Renderer, text: str, other: str) -> None:
    assume(text == text.strip() and other == other.strip() and text != other)
    prompt = classified(smollm2, next_prompt(smollm2, smollm2.encode(text), other))
    assert prompt.drift is not None and prompt.drift.kind == "rewritten"
    assert not prompt.continues and prompt.parent_id == "c1", "nothing is thrown away, and its parent is known"


def test_the_first_difference_and_both_texts_are_kept(smollm2: SmolLM2Renderer) -> None:
    found = next_prompt(smollm2, smollm2.encode("red boats and green hills"), "red boats and blue hills")
    assert isinstance(found, Departure)
    drift = classified(smollm2, found).drift
    assert drift is not None
    assert drift.expected == " green hills<|im_end|>" and drift.found.startswith(" blue hills<|im_end|>\n")
    assert smollm2.decode(found.prompt_ids[: drift.position]).endswith("red boats and")


def test_a_prompt_that_was_cut_short_is_rewritten(smollm2: SmolLM2Renderer) -> None:
    found = next_prompt(smollm2, smollm2.encode("red boats and green hills"), "red boats")
    drift = classified(smollm2, found).drift
    assert drift is not None and drift.kind == "rewritten"


def test_without_the_texts_it_is_only_known_to_drift(smollm2: SmolLM2Renderer) -> None:
    found = next_prompt(smollm2, smollm2.encode("red boats"), "blue boats")
    assert isinstance(found, Departure)
    prompt = drifted(found)
    assert prompt.drift is not None and prompt.break_reason == prompt.drift.kind == "drifted"
    assert prompt.drift.position == found.position and prompt.drift.expected == ""
