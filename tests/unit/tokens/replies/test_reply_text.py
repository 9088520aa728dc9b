"""Reading while it is sampled: the deltas of any split are the message, text comes as soon as it is certain, and
what a family's own package reads in a finished reply is what its reader read on the way."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from qwen_tokens import TAGS, spell
from real_families import LLAMA_AS_IS, QWEN3_AS_IS, QWEN25, RealFamily, loaded
from renderers import ToolCallParseStatus

from polar.errors import ConfigError, HarnessError
from polar.tokens.base import Renderer, ReplyReader
from polar.tokens.renderers.family import READ_BY_ID_TAGS, FamilyRenderer
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.replies.reply_text import message_of
from polar.types import Delta, Message, TokenIds, ToolCall, token_ids

NO_PROMPT = token_ids()
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command":"ls"}}\n</tool_call>'
BASH = ToolCall(name="bash", arguments='{"command":"ls"}')

FRAGMENTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", CALL),
    *("<tool", "_call>", "</tool_", "call>", "<", ">", "</", "<thi", "nk>", "<<tool_call"),
    *('{"name": "a", "arguments": {}}', '{"name": "a", "arguments": "{\\"x\\": 1}"}', '{"name": "a"}'),
    *('{"name": "", "arguments": {}}', '{"name": 5, "arguments": {}}', '{"name": "a", "arguments": [1]}'),
    *(
        '{"name": "a", "arguments": {"x": NaN}}',
        '{"name": "\\ud800", "arguments": {}}',
        "{broken",
        "}",
        "[" * 1200,
    ),
    *("Hello", " world", "I look.", "é", "你好", "🎉", "👩‍👩‍👧", "\N{REPLACEMENT CHARACTER}"),
    *(" ", "\n", "\n\n", "\t", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", "\x1c"),
    *("<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>"),
]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12)
seams = st.lists(st.integers(0, 10_000), max_size=12)
relaxed = settings(
    deadline=None,
    max_examples=400,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def pieces_of(ids: TokenIds, cuts: list[int]) -> list[TokenIds]:
    places = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[a:b] for a, b in pairwise(places)]


def read(reader: ReplyReader | None, pieces: list[TokenIds]) -> list[Delta]:
    assert reader is not None
    return [*(delta for piece in pieces for delta in reader.feed(piece)), *reader.finish()]


def is_one_thing(delta: Delta) -> bool:
    return sum([bool(delta.content), bool(delta.reasoning), delta.tool_call is not None]) == 1


def assert_any_split_is_the_message(renderer: Renderer, prompt: TokenIds, ids: TokenIds, cuts: list[int]) -> None:
    whole = renderer.parse(prompt, ids)
    for pieces in (pieces_of(ids, cuts), [ids], [token_ids([i]) for i in ids]):
        deltas = read(renderer.reader(prompt), pieces)
        assert message_of(deltas) == whole
        assert all(map(is_one_thing, deltas))


def hermes_ids(renderer: SmolLM2Renderer, fragments: list[str], control: bool) -> TokenIds:
    """Each fragment in tokens of its own, so that tags are split in many ways; control tokens where spelled, or
    as text."""
    encode = renderer.encode if control else renderer._vocabulary.encode  # pyright: ignore[reportPrivateUsage]
    return token_ids(i for fragment in fragments for i in encode(fragment))


class TestTagsInText:
    @relaxed
    @given(fragments=texts, cuts=seams, control=st.booleans(), lost=st.integers(0, 3))
    def test_any_split_is_the_message(
        self, smollm2: SmolLM2Renderer, fragments: list[str], cuts: list[int], control: bool, lost: int
    ) -> None:
        ids = hermes_ids(smollm2, fragments, control)
        assert_any_split_is_the_message(smollm2, NO_PROMPT, ids[: len(ids) - lost], cuts)

    @relaxed
    @given(fragments=texts, cuts=seams)
    def test_nothing_is_lost_but_calls_and_white_space(
        self, smollm2: SmolLM2Renderer, fragments: list[str], cuts: list[int]
    ) -> None:
        ids = hermes_ids(smollm2, fragments, control=False)
        text = smollm2.decode(ids)
        message = message_of(read(smollm2.reader(NO_PROMPT), pieces_of(ids, cuts)))
        if message.tool_calls:
            rest = iter(text)
            assert all(char in rest for char in message.content), "the content stands in the text, in this order"
        else:
            assert message.content == text

    @pytest.mark.parametrize(
        ("text", "content", "calls"),
        [
            ("  Done. \n", "  Done. \n", 0),
            (" \n ", " \n ", 0),
            (f"\n {CALL} \n", "", 1),
            (f" I look.\n{CALL}\n", " I look.", 1),
            (f"I look.\n{CALL}\nAnd again. {CALL}", "I look.\n\nAnd again.", 2),
            (f"{CALL}\n\n{CALL} Done.\n", "Done.", 2),
            ("<tool_call>{broken</tool_call> \n", "<tool_call>{broken</tool_call> \n", 0),
            (f"a <tool_call>{{broken</tool_call> {CALL}", "a <tool_call>{broken</tool_call>", 1),
            ("ok " + CALL.removesuffix("\n</tool_call>"), "ok", 1),
            ("ok " + CALL.removesuffix("}}\n</tool_call>"), "ok " + CALL.removesuffix("}}\n</tool_call>"), 0),
            ("a <tool_cal", "a <tool_cal", 0),
        ],
    )
    def test_white_space_around_calls_is_layout(
        self, smollm2: SmolLM2Renderer, text: str, content: str, calls: int
    ) -> None:
        message = smollm2.parse(NO_PROMPT, hermes_ids(smollm2, [text], control=False))
        assert message == Message(role="assistant", content=content, tool_calls=(BASH,) * calls)

    @pytest.mark.parametrize(
        ("text", "certain"),
        [
            ("The file", "The file"),
            ("The file is  \n", "The file is"),
            ("1 < 2 and <tool", "1 < 2 and"),
            ("1 < 2 and <tools", "1 < 2 and <tools"),
            (f"I look. {CALL} ", "I look."),
            ("I look. <tool_call>{broken", "I look."),
            ("I look. <tool_call>{broken</tool_call>", "I look. <tool_call>{broken</tool_call>"),
        ],
    )
    def test_text_comes_as_soon_as_it_is_certain(self, smollm2: SmolLM2Renderer, text: str, certain: str) -> None:
        reader = smollm2.reader(NO_PROMPT)
        so_far = [
            delta for i in hermes_ids(smollm2, [text], control=False) for delta in reader.feed(token_ids([i]))
        ]
        assert message_of(so_far).content == certain

    def test_every_token_of_plain_text_shows_its_word(self, smollm2: SmolLM2Renderer) -> None:
        reader = smollm2.reader(NO_PROMPT)
        ids = hermes_ids(smollm2, ["one two three"], control=False)
        shown = [message_of(reader.feed(token_ids([i]))).content for i in ids]
        assert shown == ["one", " two", " three"]

    def test_a_call_comes_with_its_closing_tag(self, smollm2: SmolLM2Renderer) -> None:
        reader = smollm2.reader(NO_PROMPT)
        *before, last = hermes_ids(smollm2, [CALL], control=False)
        assert reader.feed(token_ids(before)) == []
        assert reader.feed(token_ids([last])) == [Delta(tool_call=BASH)]
        assert reader.finish() == []

    def test_half_a_character_waits_for_its_rest(self, smollm2: SmolLM2Renderer) -> None:
        first, *rest = hermes_ids(smollm2, ["🎉"], control=False)
        reader = smollm2.reader(NO_PROMPT)
        assert reader.feed(token_ids([first])) == []
        assert message_of(reader.feed(token_ids(rest))).content == "🎉"
        broken_off = smollm2.reader(NO_PROMPT)
        assert read(broken_off, [token_ids([first])]) == [Delta(content="\N{REPLACEMENT CHARACTER}")]

    def test_only_the_last_stop_id_is_no_text(self, smollm2: SmolLM2Renderer) -> None:
        end = smollm2.stop_ids[0]
        hello = hermes_ids(smollm2, ["Hello"], control=False)
        ids = token_ids([*hello, end, *hello, end])
        assert smollm2.parse(NO_PROMPT, ids).content == "Hello<|im_end|>Hello"
        assert_any_split_is_the_message(smollm2, NO_PROMPT, ids, [])

    def test_a_model_without_reasoning_has_no_tokens_of_it(self, smollm2: SmolLM2Renderer) -> None:
        reader = smollm2.reader(NO_PROMPT)
        read(reader, [hermes_ids(smollm2, ["<think>Hm.</think>Yes."], control=False)])
        assert reader.reasoning_tokens == 0


THINKING = "<|im_start|>assistant\n<think>\n"
PROMPTS = ["<|im_start|>assistant\n", THINKING, THINKING + "\n</think>\n\n", THINKING + "Half a"]


def tagged_ids(renderer: Any, fragments: list[str], control: bool) -> TokenIds:
    encode = renderer.encode if control else renderer._tokenizer.encode
    return token_ids(i for fragment in fragments for i in encode(fragment))


def spelled_tags_are_tokens(renderer: FamilyRenderer, ids: TokenIds) -> bool:
    """Whether no text outside the tags' own tokens spells one."""
    tags = renderer._tags  # pyright: ignore[reportPrivateUsage]
    assert tags is not None
    tokens = [i for i in ids if i in (tags.think, tags.think_end, tags.tool_call, tags.tool_call_end)]
    return len(TAGS.findall(renderer.decode(ids))) == len(tokens)


def stock_reading(renderer: FamilyRenderer, prompt: TokenIds, ids: TokenIds) -> Any:
    try:
        return renderer._parser.parse_response(ids.tolist(), prompt_ids=prompt.tolist())  # pyright: ignore
    except RecursionError:
        assume(False)


def is_call(attempt: Any) -> bool:
    arguments = attempt.arguments
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    name = attempt.name
    is_named = isinstance(name, str) and name.isascii()
    return attempt.status == ToolCallParseStatus.OK and is_named and isinstance(arguments, dict)


def has_nan(attempt: Any) -> bool:
    return "NaN" in attempt.raw


def arguments_of(attempt: Any) -> Any:
    return json.loads(attempt.arguments) if isinstance(attempt.arguments, str) else attempt.arguments


class TestTagsAsTokens:
    @relaxed
    @given(
        fragments=texts,
        cuts=seams,
        prompt=st.sampled_from(PROMPTS),
        control=st.booleans(),
        lost=st.integers(0, 3),
    )
    def test_any_split_is_the_message(
        self, qwen3: FamilyRenderer, fragments: list[str], cuts: list[int], prompt: str, control: bool, lost: int
    ) -> None:
        ids = tagged_ids(qwen3, fragments, control)
        assert_any_split_is_the_message(qwen3, qwen3.encode(prompt), ids[: len(ids) - lost], cuts)

    @pytest.mark.parametrize("name", READ_BY_ID_TAGS)
    @relaxed
    @given(fragments=texts, prompt=st.sampled_from(PROMPTS), control=st.booleans(), lost=st.integers(0, 3))
    def test_it_is_what_the_familys_own_package_reads(
        self,
        qwens: dict[str, FamilyRenderer],
        name: str,
        fragments: list[str],
        prompt: str,
        control: bool,
        lost: int,
    ) -> None:
        """The package leaves open reasoning untrimmed, forgets text after the first call and reads no last call
        without its closing tag: there, and only there, the reader says more."""
        family = qwens[name]
        ids = tagged_ids(family, fragments, control)
        ids = ids[: len(ids) - lost]
        assume(spelled_tags_are_tokens(family, ids))
        assume(not family.decode(ids).startswith("<|im_start|>assistant"))
        stock = stock_reading(family, family.encode(prompt), ids)
        message = family.parse(family.encode(prompt), ids)
        assert message.reasoning == (stock.reasoning_content or "").strip()
        read_calls = [a for a in stock.tool_calls if is_call(a) and not has_nan(a)]
        unclosed = bool(stock.tool_calls) and stock.tool_calls[-1].status == ToolCallParseStatus.UNCLOSED_BLOCK
        ours = [(c.name, json.loads(c.arguments)) for c in message.tool_calls]
        stocks = [(a.name, arguments_of(a)) for a in read_calls]
        assert ours == stocks or (unclosed and ours[:-1] == stocks)
        if stock.tool_calls:
            assert message.content.startswith(stock.content)
        else:
            assert message.content == stock.content
        unread = [a.raw for a in stock.tool_calls if not is_call(a) or has_nan(a)]
        unread = unread[:-1] if len(ours) > len(stocks) else unread
        assert all(raw in message.content for raw in unread)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("<think>\nHm.\n</think>\n\nYes.\n", Message("assistant", "Yes.", "Hm.")),
            (f"\n<think>\n\n</think>\n\n{CALL}", Message("assistant", tool_calls=(BASH,))),
            (f"{CALL}\nDone. {CALL}\n", Message("assistant", "Done.", tool_calls=(BASH, BASH))),
            ("<think>Hm. <think> So.", Message("assistant", reasoning="Hm.  So.")),
            (f"<think>Hm. {CALL}", Message("assistant", reasoning="Hm.", tool_calls=(BASH,))),
            (f"<think>Hm. {CALL} No.</think>Yes.", Message("assistant", "Yes.", f"Hm. {CALL} No.")),
            ("<think>a<tool_call>b<think>c</think>d", Message("assistant", "d", "a<tool_call>bc")),
            ("No. <think>Hm.</think>", Message("assistant", "No. <think>Hm.</think>")),
            ("<think>a</think>b<think>c</think>", Message("assistant", "b<think>c</think>", "a")),
            ("a <tool_call>{no</tool_call>\n", Message("assistant", "a <tool_call>{no</tool_call>")),
            ("a </tool_call> b", Message("assistant", "a </tool_call> b")),
        ],
    )
    def test_what_is_what(self, qwen3: FamilyRenderer, text: str, message: Message) -> None:
        ids = token_ids(spell(qwen3, text))
        assert qwen3.parse(NO_PROMPT, ids) == message
        assert_any_split_is_the_message(qwen3, NO_PROMPT, ids, [])

    def test_only_the_token_is_a_tag(self, qwen3: FamilyRenderer) -> None:
        ids = tagged_ids(qwen3, ["<think>", "The tag </", "think> ends it.", "</think>", "Yes."], control=False)
        assert qwen3.parse(NO_PROMPT, ids) == Message("assistant", "Yes.", "The tag </think> ends it.")

    def test_a_prompt_may_have_opened_the_thinking(self, qwen3: FamilyRenderer) -> None:
        reply = token_ids(spell(qwen3, "Hm.\n</think>\nYes."))
        assert qwen3.parse(qwen3.encode(THINKING), reply) == Message("assistant", "Yes.", "Hm.")
        closed = qwen3.encode("<think>Old.<|im_end|>\n<|im_start|>assistant\n")
        assert qwen3.parse(closed, reply).content == "Hm.\n</think>\nYes."

    @pytest.mark.parametrize(
        ("text", "certain"),
        [
            ("<think>\nLet me", Message("assistant", reasoning="Let me")),
            ("<think>\nLet me see.\n", Message("assistant", reasoning="Let me see.")),
            ("<think>Hm.</think>\n\nYes. ", Message("assistant", "Yes.", "Hm.")),
            (f"<think>Hm. {CALL} so", Message("assistant", reasoning="Hm.")),
            (
                f"<think>Hm.</think>{CALL}\n<tool_call>{{",
                Message("assistant", reasoning="Hm.", tool_calls=(BASH,)),
            ),
        ],
    )
    def test_text_comes_as_soon_as_it_is_certain(self, qwen3: FamilyRenderer, text: str, certain: Message) -> None:
        reader = qwen3.reader(NO_PROMPT)
        assert reader is not None
        so_far = [delta for i in spell(qwen3, text)[:-1] for delta in reader.feed(token_ids([i]))]
        assert message_of(so_far) == certain

    @pytest.mark.parametrize(
        ("text", "count"),
        [("<think>abc</think>defg", 3), ("abc", 0), ("<think>ab", 2), ("<think>a<tool_call>b</think>c", 3)],
    )
    def test_reasoning_tokens_stand_between_the_tags(self, qwen3: FamilyRenderer, text: str, count: int) -> None:
        reader = qwen3.reader(NO_PROMPT)
        assert reader is not None
        read(reader, [token_ids(spell(qwen3, text))])
        assert reader.reasoning_tokens == count

    def test_what_follows_a_stop_id_is_not_read(self, qwen3: FamilyRenderer) -> None:
        ids = token_ids([*spell(qwen3, "Yes."), *spell(qwen3, "No.")])
        assert qwen3.parse(NO_PROMPT, ids).content == "Yes."

    def test_ids_that_the_tokenizer_has_not_say_nothing(self, qwen3: FamilyRenderer) -> None:
        assert qwen3.parse(NO_PROMPT, token_ids([151_900, *spell(qwen3, "Yes.")])).content == "Yes."


@pytest.mark.parametrize("which", [QWEN25, QWEN3_AS_IS, LLAMA_AS_IS], ids=str)
@relaxed
@given(fragments=texts, cuts=seams, control=st.booleans(), lost=st.integers(0, 3))
def test_whatever_tags_a_model_has_any_split_is_the_message(
    which: RealFamily, fragments: list[str], cuts: list[int], control: bool, lost: int
) -> None:
    """Tags of calls alone, of thinking too, and none that are read."""
    try:
        renderer = loaded(which)
    except (HarnessError, ConfigError) as error:
        pytest.skip(str(error))
    ids = tagged_ids(renderer, fragments, control)
    assert_any_split_is_the_message(renderer, NO_PROMPT, ids[: len(ids) - lost], cuts)
