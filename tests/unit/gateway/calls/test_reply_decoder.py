"""What a growing reply says, and how a stop text ends it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.gateway.calls.token_mode import ReplyDecoder, StopSearch
from polar.testing import split_once
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.replies.reply_text import deltas_of, message_of
from polar.types import Delta, Message, TokenIds, ToolCall, token_ids

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


@pytest.fixture
def encode(smollm2: SmolLM2Renderer):
    vocabulary = smollm2._vocabulary  # pyright: ignore[reportPrivateUsage]

    def sampled(text: str, *, ended: bool = True) -> TokenIds:
        """Ids as an engine might sample them: not those that a tokenizer would choose."""
        return token_ids([*split_once(vocabulary, text), *(smollm2.stop_ids[:1] if ended else ())])

    return sampled


class WholeOnly:
    """A family that can be read only as a whole."""

    def __init__(self, inner: SmolLM2Renderer) -> None:
        self.parse = inner.parse

    def reader(self, _: TokenIds, *, calls: bool = True) -> None:
        return None


def decoder_of(renderer, *stop: str, raw: bool = False) -> ReplyDecoder:
    return ReplyDecoder(renderer, token_ids(), stop, raw=raw)


def texts(deltas: list[Delta]) -> str:
    return "".join(delta.content for delta in deltas)


def test_text_comes_while_it_is_sampled(smollm2: SmolLM2Renderer, encode) -> None:
    ids, decoder = encode("The sky is blue today."), decoder_of(smollm2)
    deltas: list[Delta] = []
    for token_id in ids[:4]:
        deltas += decoder.feed(token_ids([token_id]))[1]
    assert texts(deltas) and "The sky is blue today.".startswith(texts(deltas))
    deltas += decoder.feed(ids[4:])[1] + decoder.finish()
    assert texts(deltas) == "The sky is blue today."


@pytest.mark.parametrize("whole", [False, True])
def test_without_tools_a_call_is_text(smollm2: SmolLM2Renderer, encode, whole: bool) -> None:
    text = 'So: <tool_call>{"name": "ls", "arguments": {}}</tool_call> and on'
    renderer: Any = WholeOnly(smollm2) if whole else smollm2
    decoder = ReplyDecoder(renderer, token_ids(), (), raw=False, calls=False)
    deltas = decoder.feed(encode(text))[1] + decoder.finish()
    assert texts(deltas) == text and not any(delta.tool_call for delta in deltas)


class TestStopTexts:
    def test_the_harness_sees_what_comes_before_it(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder, ids = decoder_of(smollm2, "END"), encode("one two END three four")
        count, deltas = decoder.feed(ids)
        assert texts(deltas + decoder.finish()) == "one two "
        assert decoder.stop_sequence == "END"
        # The ids that spell it are kept, and none after them.
        kept = smollm2.decode(ids[:count])
        assert kept.endswith("END") and count < len(ids)

    def test_the_beginning_of_one_is_held_back_and_then_released(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder, ids = decoder_of(smollm2, "stopping here"), encode("I am stopping there")
        deltas: list[Delta] = []
        for token_id in ids:
            deltas += decoder.feed(token_ids([token_id]))[1]
            assert not texts(deltas).endswith("stopping")
        assert texts(deltas + decoder.finish()) == "I am stopping there"
        assert decoder.stop_sequence == ""

    def test_text_that_ends_like_the_beginning_of_one_comes_at_the_end(self, smollm2, encode) -> None:
        decoder = decoder_of(smollm2, "\n\nUser:")
        _, deltas = decoder.feed(encode("Fine.\n\nUs"))
        assert texts(deltas + decoder.finish()) == "Fine.\n\nUs"

    def test_a_call_before_it_is_a_call(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder = decoder_of(smollm2, "END")
        _, deltas = decoder.feed(encode(f"{CALL} END {CALL}"))
        assert message_of([*deltas, *decoder.finish()]).tool_calls[0].name == "bash"
        assert len(message_of(deltas).tool_calls) == 1 and decoder.stop_sequence == "END"

    def test_inside_a_call_it_is_an_argument(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder = decoder_of(smollm2, "ls")
        count, deltas = decoder.feed(ids := encode(CALL))
        assert count == len(ids) and message_of([*deltas, *decoder.finish()]).tool_calls

    def test_the_first_of_several_counts(self) -> None:
        search = StopSearch(("cd", "abc"))
        assert search.cut([Delta(content="xabcd")]) == [Delta(content="x")]
        assert search.found == "abc"

    def test_nothing_follows_it(self) -> None:
        search = StopSearch(("!",))
        deltas = search.cut([Delta(content="hi! "), Delta(content="more"), Delta(tool_call=ToolCall("a", "{}"))])
        assert deltas == [Delta(content="hi")]

    @given(
        st.text("ab!?", max_size=30),
        st.lists(st.text("ab!?", min_size=1, max_size=4), min_size=1, max_size=3),
        st.data(),
    )
    def test_however_the_text_comes_the_cut_is_the_same(
        self, text: str, stops: list[str], data: st.DataObject
    ) -> None:
        ends = [text.find(stop) for stop in stops if stop in text]
        cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
        search, deltas = StopSearch(tuple(stops)), []
        for start, end in pairwise(cuts):
            deltas += search.cut([Delta(content=text[start:end])])
        deltas += [] if search.found else search.rest()
        if not ends:
            assert texts(deltas) == text and not search.found
        else:
            # A stop text is found when it is complete, so a longer one that began earlier may come second.
            assert search.found and text.startswith(texts(deltas) + search.found)


class TestWholeReplies:
    """A family that can be read only as a whole, and a prompt that was no conversation."""

    def test_all_deltas_come_at_the_end(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder, ids = decoder_of(WholeOnly(smollm2), "END"), encode(f"Look. {CALL}")
        assert decoder.feed(ids) == (len(ids), [])
        message = message_of(decoder.finish())
        assert message.content.strip() == "Look." and message.tool_calls[0].name == "bash"
        assert decoder.reasoning_tokens == 0

    def test_a_stop_text_still_cuts_it(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder = decoder_of(WholeOnly(smollm2), "END")
        decoder.feed(encode("one END two"))
        assert texts(decoder.finish()) == "one " and decoder.stop_sequence == "END"

    def test_a_raw_reply_is_its_text(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder = decoder_of(smollm2, raw=True)
        _, deltas = decoder.feed(encode(f"x {CALL}"))
        assert texts(deltas + decoder.finish()) == f"x {CALL}" and not any(d.tool_call for d in deltas)

    def test_a_raw_reply_flows_and_ends_at_a_stop_text(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder, ids = decoder_of(smollm2, "END", raw=True), encode("größer 🦀 END more")
        deltas: list[Delta] = []
        for token_id in ids[:6]:
            deltas += decoder.feed(token_ids([token_id]))[1]
        assert texts(deltas) and "größer 🦀 ".startswith(texts(deltas))
        count, rest = decoder.feed(ids[6:])
        assert texts(deltas + rest + decoder.finish()) == "größer 🦀 " and 6 + count < len(ids)

    def test_a_raw_reply_that_was_cut_off_keeps_its_last_token(self, smollm2: SmolLM2Renderer, encode) -> None:
        decoder = decoder_of(smollm2, raw=True)
        _, deltas = decoder.feed(encode("cut off", ended=False))
        assert texts(deltas + decoder.finish()) == "cut off"


def test_a_message_and_its_deltas_are_the_same() -> None:
    call = ToolCall("bash", "{}", "c1")
    message = Message(role="assistant", content="hi", reasoning="hm", tool_calls=(call,))
    assert deltas_of(message) == [Delta(reasoning="hm"), Delta(content="hi"), Delta(tool_call=call)]
    assert message_of(deltas_of(message)) == message
    assert deltas_of(Message(role="assistant")) == []
