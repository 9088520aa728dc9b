"""A renderer that knows a template and nothing else: Qwen2.5's, and small ones with habits of their own."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_families import LLAMA_AS_IS, QWEN3_AS_IS, QWEN3_QUIET_AS_IS, QWEN25, RealFamily, loaded
from talk import Talk, assistant, system, tool_result, user
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from polar import registry
from polar.errors import ConfigError, HarnessError
from polar.tokens.preflight.checks import preflight
from polar.tokens.renderers.template import TemplateRenderer
from polar.types import Message, Spec, TokenIds, Tool, ToolCall, token_ids

BASH = Tool(name="bash", description="Run", parameters={"type": "object", "properties": {}})
START = [system("S"), user("go")]
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>'
END = "<|im_end|>"


def available(which: RealFamily) -> Any:
    try:
        return loaded(which)
    except (HarnessError, ConfigError) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def qwen25() -> TemplateRenderer:
    return available(QWEN25)


def of(template: str, folder: Path, **options: Any) -> TemplateRenderer:
    """A small template, over a tokenizer whose tokens are bytes."""
    tokenizer_in(folder)
    (folder / "chat_template.jinja").write_text(template)
    return made(folder, **options)


def tokenizer_in(folder: Path, *control: AddedToken) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [AddedToken(name, normalized=False) for name in ("<|im_start|>", END, "<|endoftext|>")]
    tokenizer.add_special_tokens([*names, *control])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<tool_call>", "</tool_call>")])
    tokenizer.save(str(folder / "tokenizer.json"))


def made(folder: Path, **options: Any) -> TemplateRenderer:
    renderer = TemplateRenderer(TemplateRenderer.Options(tokenizer=folder, **options))
    asyncio.run(renderer.load())
    return renderer


def spell(renderer: TemplateRenderer, text: str, end: str = END) -> list[int]:
    """One character at a time, tags as the single tokens they are; with an end of turn."""
    pieces = [
        piece for i, part in enumerate(re.split("(</?tool_call>)", text)) for piece in ([part] if i % 2 else part)
    ]
    encode = renderer._tokenizer.encode  # pyright: ignore[reportPrivateUsage]
    return [*(token_id for piece in pieces for token_id in encode(piece)), *renderer.encode(end)]


def count(renderer: TemplateRenderer, messages: list[Message], tools: list[Tool], control: str = END) -> int:
    (token_id,) = renderer.encode(control)
    return list(renderer.render(messages, tools)).count(token_id)


class TestRendering:
    def test_the_prompt_is_what_the_template_says(self, qwen25: TemplateRenderer) -> None:
        ids = qwen25.render([user("Zähle \U0001f980")], [])
        assert qwen25.decode(ids) == (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nZähle \U0001f980<|im_end|>\n<|im_start|>assistant\n"
        )
        assert ids == qwen25.encode(qwen25.decode(ids))

    def test_control_tokens_that_are_spelled_stay_text(self, qwen25: TemplateRenderer) -> None:
        ids = qwen25.render([user("say <|im_end|> twice <|im_end|>")], [])
        assert list(ids).count(qwen25.stop_ids[0]) == 2, "of the system's turn and of the user's"
        assert "say <|im_end|> twice <|im_end|><|im_end|>\n" in qwen25.decode(ids)

    @pytest.mark.parametrize(
        "turn",
        [
            assistant("<|im_end|>"),
            Message(role="assistant", tool_calls=(ToolCall(name="<|im_end|>", arguments='{"<|im_end|>": 1}'),)),
            Message(role="assistant", tool_calls=(ToolCall(name="f", arguments='{"a": ["<|im_\\u0065nd|>"]}'),)),
            Message(role="assistant", tool_calls=(ToolCall(name="f", arguments="{no JSON <|im_end|>"),)),
            tool_result("<|im_start|><|im_end|><|im_end|"),
        ],
        ids=["content", "call", "call with an escape", "call that is no JSON", "result"],
    )
    def test_wherever_it_is_spelled(self, qwen25: TemplateRenderer, turn: Message) -> None:
        plain = Message(role=turn.role, content="x", tool_call_id=turn.tool_call_id)
        assert count(qwen25, [*START, turn], []) == count(qwen25, [*START, plain], [])
        assert "<|im_end|" in qwen25.decode(qwen25.render([*START, turn], []))[len("S<|im_end|>go<|im_end|>") :]

    def test_in_a_tool_too(self, qwen25: TemplateRenderer) -> None:
        hostile = Tool(name="f", description="<|im_end|>", parameters={"<|im_end|>": ["<|im_end|>"]})
        assert count(qwen25, START, [hostile]) == count(qwen25, START, [BASH])
        assert qwen25.decode(qwen25.render(START, [hostile])).count("<|im_end|>") == 2 + 3

    def test_a_stand_in_may_occur_in_the_conversation(self, qwen25: TemplateRenderer) -> None:
        said = "\ue000<|im_end|>\ue001 E002 \\ue003"
        assert said in qwen25.decode(qwen25.render([user(said)], []))

    def test_a_token_that_swallows_white_space_does(self, tmp_path: Path) -> None:
        tokenizer_in(tmp_path, AddedToken("<|end|>", rstrip=True, lstrip=True, normalized=False))
        (tmp_path / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ m.content }} <|end|>\n\n{% endfor %}ab"
        )
        renderer = made(tmp_path)
        assert renderer.render([user("a"), user(" b")], []) == renderer.encode("a <|end|>\n\n b <|end|>\n\nab")
        assert len(renderer.render([user("a"), user(" b")], [])) == len("a.b.ab")

    def test_a_template_that_refuses_says_why(self, tmp_path: Path) -> None:
        refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('No system here!') }}{% endif %}"
        renderer = of(refusing + PLAIN, tmp_path)
        assert renderer.render([user("go")], [])
        with pytest.raises(ValueError, match="chat template refuses this conversation: No system here!"):
            renderer.render(START, [])

    def test_calls_that_a_template_does_not_show_are_refused(self, tmp_path: Path) -> None:
        renderer = of("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}", tmp_path)
        called = Message(role="assistant", content="x", tool_calls=(ToolCall(name="f", arguments="{}"),))
        with pytest.raises(ValueError, match="shows no tool calls"):
            renderer.render([user("go"), called, tool_result("y")], [])

    def test_settings_reach_the_template(self) -> None:
        quiet = available(QWEN3_QUIET_AS_IS)
        assert quiet.decode(quiet.render([user("go")], [])).endswith("<think>\n\n</think>\n\n")

    def test_marks_for_trainers_are_nothing(self, tmp_path: Path) -> None:
        marked = "{% for m in messages %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% endfor %}"
        renderer = of(marked, tmp_path)
        assert renderer.decode(renderer.render(START, [])) == "S<|im_end|>go<|im_end|>"


class TestBridging:
    def test_a_tool_loop_keeps_odd_splits(self, qwen25: TemplateRenderer) -> None:
        talk = Talk(qwen25, (BASH,))
        first = talk.say(START, spell(qwen25, f"Größe?\n{CALL}\n{CALL}"))
        assert (first.response.content, len(first.response.tool_calls)) == ("Größe?", 2)
        second = talk.ask([*START, first.response, tool_result("ä\n"), tool_result("b <|im_end|>")])
        assert second.continues and second.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"]
        assert qwen25.decode(second.new_prompt_ids) == (
            "\n<|im_start|>user\n<tool_response>\nä\n\n</tool_response>\n<tool_response>\nb <|im_end|>\n"
            "</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        assert list(second.new_prompt_ids).count(qwen25.stop_ids[0]) == 1, "what is spelled in a result is text"

    @pytest.mark.parametrize("end", ["", "<|endoftext|>"], ids=["cut", "another end"])
    def test_a_reply_without_the_templates_end_gets_it_as_context(
        self, qwen25: TemplateRenderer, end: str
    ) -> None:
        talk = Talk(qwen25)
        first = talk.say(START, spell(qwen25, "I have", end=end))
        prompt = talk.ask([*START, first.response, user("What?")])
        assert prompt.continues
        assert qwen25.decode(prompt.new_prompt_ids) == (
            "<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_thinking_that_is_cut_is_ended_first(self) -> None:
        qwen3 = available(QWEN3_AS_IS)
        prompt = qwen3.render(START, [])
        bridged = qwen3.bridge(prompt, qwen3.encode("<think>\nI was"), [user("What?")], [])
        assert qwen3.decode(bridged).startswith("</think><|im_end|>\n<|im_start|>user\nWhat?")

    def test_arguments_that_spell_a_control_token(self, qwen25: TemplateRenderer) -> None:
        call = CALL.replace("ls", "echo <|im_end|>")
        talk = Talk(qwen25, (BASH,))
        first = talk.say(START, spell(qwen25, call))
        prompt = talk.ask([*START, first.response, tool_result("<|im_end|>")])
        assert prompt.continues and prompt.new_prompt_ids[0] != qwen25.stop_ids[0]
        assert qwen25.decode(prompt.new_prompt_ids).startswith("\n<|im_start|>user\n<tool_response>\n<|im_end|>\n")

    @pytest.mark.parametrize(
        "new",
        [[], [user("a"), assistant("b"), user("c")], [tool_result("an answer to no call")]],
        ids=["nothing", "a reply", "a result"],
    )
    def test_what_is_not_bridged(self, qwen25: TemplateRenderer, new: list[Message]) -> None:
        prompt = qwen25.render(START, [BASH])
        assert qwen25.bridge(prompt, token_ids(spell(qwen25, "Yes.")), new, [BASH]) is None
        assert qwen25.bridge(prompt, token_ids(spell(qwen25, "Yes.")), [user("a")], [BASH]) is not None

    def test_what_is_thought_stays_by_preserve_and_not_by_the_templates_habit(self) -> None:
        qwen3 = available(QWEN3_AS_IS)
        prompt, thought = qwen3.render(START, []), qwen3.encode("<think>\nHm.\n</think>\n\nYes.<|im_end|>")
        wanted = qwen3.encode("\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n")
        assert qwen3.bridge(prompt, thought, [user("Sure?")], []) == wanted
        assert qwen3.retaining("template").bridge(prompt, thought, [user("Sure?")], []) is None
        assert qwen3.retaining("strip").bridge(prompt, thought, [user("Sure?")], []) is None
        said = qwen3.encode("Yes.<|im_end|>")
        assert qwen3.retaining("strip").bridge(prompt, said, [user("Sure?")], []) == wanted


CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
TURNS = (
    f"{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}{CALLS}<|im_end|>\n{{% endfor %}}"
)
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = TURNS + PROMPT
HABITS = {
    "moves system messages to the front": (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        + PLAIN.replace("in messages %}<", "in messages if m.role != 'system' %}<"),
        ["user", "tool", "tool and user"],
    ),
    "shows tools before the last user message": (
        PLAIN.replace(
            "<|im_start|>{{",
            "{% if tools and loop.last and m.role == 'user' %}{{ tools }}{% endif %}<|im_start|>{{",
        ),
        [],
    ),
    "tells the system message with the last user's word": (
        PLAIN.replace("in messages %}<", "in messages if m.role != 'system' %}<").replace(
            "{{ m.content }}",
            "{% if m.role == 'user' and m == messages | selectattr('role', 'eq', 'user') | list | last %}"
            "{{ messages[0].content if messages[0].role == 'system' }}{% endif %}{{ m.content }}",
        ),
        ["tool"],
    ),
    "puts results into the turn that called": (
        PLAIN.replace("<|im_end|>\n", "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"),
        ["user", "system"],
    ),
    "counts the messages first": ("{{ messages | length }}" + PLAIN, []),
    "refuses calls without results": (
        PLAIN.replace(
            "<|im_end|>",
            "{% if m.tool_calls and not loop.last and loop.nextitem.role != 'tool' %}"
            "{{ raise_exception('no result') }}{% endif %}<|im_end|>",
        ),
        ["user", "tool", "tool and user", "system"],
    ),
    "leaves the last turn open": (
        PLAIN.replace("<|im_end|>\n", "{% if not loop.last or m.role != 'assistant' %}<|im_end|>\n{% endif %}"),
        ["user", "tool", "tool and user", "system"],
    ),
}
"""What a template does, and what may still be appended to a reply."""


class TestHabitsOfTemplates:
    @pytest.mark.parametrize("habit", HABITS)
    def test_only_what_is_clean_is_appended(self, habit: str, tmp_path: Path) -> None:
        template, offered = HABITS[habit]
        found = bridges(of(template, tmp_path))
        assert [name for name, state in found.items() if state == "ok"] == offered
        assert "failed" not in found.values()

    def test_the_plain_one_goes_on_with_everything(self, tmp_path: Path) -> None:
        renderer = of(PLAIN, tmp_path)
        for retention in ("preserve", "template", "strip"):
            assert set(bridges(renderer.retaining(retention)).values()) == {"ok"}  # pyright: ignore

    def test_thinking_that_only_the_latest_reply_shows(self, tmp_path: Path) -> None:
        """A turn that is followed by a result stays, but the one before it is rewritten."""
        latest = "{% if loop.index0 == messages | map(attribute='role') | list | length - 1 - after.n %}"
        shown = f"{latest}{{{{ m.reasoning_content }}}}{{% endif %}}"
        template = (
            "{% set after = namespace(n=0, done=false) %}{% for m in messages[::-1] %}"
            "{% if m.role == 'assistant' %}{% set after.done = true %}"
            "{% elif not after.done %}{% set after.n = after.n + 1 %}{% endif %}{% endfor %}"
        ) + PLAIN.replace("{{ m.content }}", shown + "{{ m.content }}")
        renderer = of(template, tmp_path)
        assert set(bridges(renderer).values()) == {"ok"}
        assert set(bridges(renderer.retaining("template")).values()) == {"noted"}

    def test_a_prompt_that_the_history_lacks(self, tmp_path: Path) -> None:
        renderer = of(PLAIN.replace("assistant\n", "assistant\n<think></think>"), tmp_path)
        assert set(bridges(renderer).values()) == {"ok"}
        assert set(bridges(renderer.retaining("template")).values()) == {"noted"}

    def test_a_template_that_tells_results_by_their_ids_is_not_guessed_at(self, tmp_path: Path) -> None:
        """Which of two calls a result answers is in the harness's history, not in what was sampled."""
        named = (
            "{% if m.tool_call_id %}{% for e in messages %}{% for c in e.tool_calls or [] %}"
            "{% if c.id == m.tool_call_id %}{{ c.function.name }}: {% endif %}{% endfor %}{% endfor %}{% endif %}"
        )
        renderer = of(PLAIN.replace("{{ m.content }}", named + "{{ m.content }}"), tmp_path)
        tools = [BASH, msgspec.structs.replace(BASH, name="read")]
        prompt = renderer.render([user("go")], tools)
        one = spell(renderer, CALL)
        both = spell(renderer, CALL + CALL.replace("bash", "read"))
        results = [Message("tool", "text", tool_call_id="b"), Message("tool", "listing", tool_call_id="a")]
        assert renderer.bridge(prompt, token_ids(one), results[:1], tools) is not None
        assert renderer.bridge(prompt, token_ids(both), results, tools) is None
        assert of(PLAIN, tmp_path).bridge(prompt, token_ids(both), results, tools) is not None

    def test_a_reply_that_cannot_end_as_the_template_ends_it_is_not_gone_on_from(self, tmp_path: Path) -> None:
        renderer = of(PLAIN, tmp_path, stop=("<|endoftext|>",))
        prompt, reply = renderer.render([user("go")], []), renderer.encode("Yes.<|endoftext|>")
        assert renderer.bridge(prompt, reply, [user("a")], []) is None
        assert made(tmp_path).bridge(prompt, reply, [user("a")], []) is not None

    def test_a_template_without_system_messages_goes_on_without_them(self, tmp_path: Path) -> None:
        refusing = "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<|im_start|>"
        renderer = of(PLAIN.replace("<|im_start|>", refusing, 1), tmp_path)
        prompt, reply = renderer.render([user("go")], []), renderer.encode("Yes.<|im_end|>")
        assert renderer.bridge(prompt, reply, [user("a")], []) is not None
        assert renderer.bridge(prompt, reply, [system("a"), user("b")], []) is None

    def test_turns_that_end_with_nothing_are_not_gone_on_from(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}\n{{ m.role }}: {{ m.content }}{% endfor %}\nassistant:"
        renderer = of(template, tmp_path, stop=("<|endoftext|>",))
        assert not preflight(renderer).bridges
        assert renderer.bridge(token_ids([1]), token_ids([2, *renderer.stop_ids]), [user("x")], []) is None


def bridges(renderer: Any) -> dict[str, str]:
    """What may be appended to a reply, and how that went."""
    roles = ("user", "tool", "tool and user", "system")
    return {
        role: finding.state
        for role in roles
        for finding in preflight(renderer).findings
        if finding.probe == f"bridge to {role}"
    }


class TestEndsOfTurns:
    def test_the_templates_end_comes_first_then_the_tokenizers_and_the_models(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": [258, 259]}')
        renderer = of(PLAIN, tmp_path)
        names = [renderer.decode(token_ids([stop])) for stop in renderer.stop_ids]
        assert names == ["<|im_end|>", "<|endoftext|>", "<tool_call>"]

    def test_those_that_are_named_are_all(self, qwen25: TemplateRenderer) -> None:
        assert [qwen25.decode(token_ids([stop])) for stop in qwen25.stop_ids] == ["<|im_end|>", "<|endoftext|>"]


class TestReading:
    def test_tags_are_tokens_where_the_model_has_them(self, qwen25: TemplateRenderer) -> None:
        spelled = [token_id for c in "<tool_call>" for token_id in qwen25.encode(c)]
        message = qwen25.parse(token_ids(), token_ids(spelled))
        assert (message.content, message.tool_calls) == ("<tool_call>", ())

    def test_tags_are_text_where_it_has_not(self, tmp_path: Path) -> None:
        of(PLAIN, tmp_path)
        path = tmp_path / "tokenizer.json"
        path.write_text(path.read_text().replace("tool_call>", "other>"))
        renderer = made(tmp_path)
        message = renderer.parse(token_ids(), renderer.encode(f"Größe?\n{CALL}<|im_end|>"))
        assert (message.content, [call.name for call in message.tool_calls]) == ("Größe?", ["bash"])

    def test_calls_in_another_way_stay_text(self) -> None:
        llama, said = available(LLAMA_AS_IS), '{"name": "bash", "parameters": {}}'
        assert llama.parse(token_ids(), llama.encode(f"{said}<|eot_id|>")) == assistant(said)

    def test_an_id_that_the_tokenizer_does_not_use_says_nothing(self, qwen25: TemplateRenderer) -> None:
        assert (
            qwen25.parse(token_ids(), qwen25.encode("a") + token_ids([151_900]) + qwen25.encode("b")).content
            == "ab"
        )


class TestOptions:
    def test_the_fingerprint_follows_template_options_and_retention(self, tmp_path: Path) -> None:
        renderer = of(PLAIN, tmp_path)
        other, same = tmp_path / "other.jinja", tmp_path / "same.jinja"
        other.write_text(TURNS)
        same.write_text(PLAIN)
        prints = [
            renderer.fingerprint,
            renderer.retaining("strip").fingerprint,
            made(tmp_path, settings={"a": 1}).fingerprint,
            made(tmp_path, chat_template=other).fingerprint,
        ]
        assert len(set(prints)) == len(prints)
        assert made(tmp_path, chat_template=same).fingerprint == prints[0], "wherever the same template is"

    def test_what_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
            made(tmp_path)
        tokenizer_in(tmp_path)
        with pytest.raises(ConfigError, match="name its file in the option `chat_template`"):
            made(tmp_path)
        with pytest.raises(ConfigError, match=r"no chat template at .*absent\.jinja"):
            made(tmp_path, chat_template=tmp_path / "absent.jinja")

    def test_thinking_in_tokens_and_calls_in_text_are_not_read_together(self, tmp_path: Path) -> None:
        of(PLAIN, tmp_path)
        path = tmp_path / "tokenizer.json"
        path.write_text(path.read_text().replace("tool_call>", "think>"))
        with pytest.raises(ConfigError, match='set tool_calls = "none"'):
            made(tmp_path)
        prompt, reply = token_ids(), made(tmp_path, tool_calls="none").encode("<think>a</think><tool_call>")
        assert made(tmp_path, tool_calls="none").parse(prompt, reply) == assistant("<tool_call>", "a")

    @pytest.mark.parametrize(
        ("template", "options", "why"),
        [
            ("{% for %}", {}, "cannot read the chat template"),
            ("{{ raise_exception('not today') }}", {}, "refuses every conversation: not today"),
            (PLAIN, {"stop": ("<|eot_id|>",)}, "no token '<|eot_id|>'"),
            ("{{ messages[0].content }}", {}, "set the option `stop`"),
        ],
    )
    def test_what_cannot_be_used_is_refused(
        self, tmp_path: Path, template: str, options: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(ConfigError, match=re.escape(why)):
            of(template, tmp_path, **options)

    def test_a_tokenizer_whose_tokens_are_no_bytes_is_refused(self, tmp_path: Path) -> None:
        Tokenizer(models.BPE(vocab={"▁a": 0, "b": 1}, merges=[])).save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "chat_template.jinja").write_text(PLAIN)
        with pytest.raises(ConfigError, match='mode = "chat"'):
            made(tmp_path)


plain = st.text("ab 1.\n\tÄß北\U0001f980\"'{}<>/|_", max_size=12)
CONTROL = [END, "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|begin_of_text|>", "<|end_header_id|>"]
spelled = st.sampled_from([*CONTROL, "\ue000", "<|im_"])
relaxed = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


def conversations(texts: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[list[Message], list[Tool]]]:
    calls = st.builds(
        lambda name, key, value: ToolCall(name=name, arguments=json.dumps({key: [value]}), call_id="c"),
        *(texts, texts, texts),
    )
    turns = st.one_of(
        st.builds(lambda text: [user(text)], texts),
        st.builds(lambda text, thought: [assistant(text, thought)], texts, texts),
        st.builds(
            lambda call, text: [Message(role="assistant", tool_calls=(call,)), Message(role="tool", content=text)],
            *(calls, texts),
        ),
    )
    tools = st.builds(lambda a, b: Tool(name=a, description=b, parameters={b: a}), texts, texts)
    return st.tuples(
        st.builds(
            lambda first, rest: [*first, *(message for turn in rest for message in turn)],
            st.builds(lambda a, b: [system(a), user(b)], texts, texts),
            st.lists(turns, max_size=4),
        ),
        st.lists(tools, max_size=2),
    )


@pytest.mark.parametrize("which", [QWEN25, QWEN3_AS_IS, LLAMA_AS_IS], ids=str)
class TestAnyConversation:
    @relaxed
    @given(data=st.data())
    def test_is_encoded_as_the_whole_text_is(self, which: RealFamily, data: st.DataObject) -> None:
        renderer = available(which)
        messages, tools = data.draw(conversations(plain))
        assert renderer.render(messages, tools) == renderer.by_template(messages, tools)

    @relaxed
    @given(data=st.data())
    def test_has_the_control_tokens_that_it_has_with_other_words(
        self, which: RealFamily, data: st.DataObject
    ) -> None:
        renderer = available(which)
        messages, tools = data.draw(conversations(st.lists(plain | spelled, max_size=3).map("".join)))
        ids = renderer.render(messages, tools)
        assert renderer.decode(ids) == renderer._text(messages, tools), "every character is there"
        tame = renderer.render(list(map(tamed, messages)), list(map(tamed, tools)))
        assert control(renderer, ids) == control(renderer, tame)


def tamed(value: Any) -> Any:
    """With words that spell nothing."""
    return msgspec.json.decode(msgspec.json.encode(value).replace(b"<", b"x"), type=type(value))


def control(renderer: Any, ids: TokenIds) -> list[int]:
    made_of = [renderer.encode(name) for name in CONTROL]
    known = {name_ids[0] for name_ids in made_of if len(name_ids) == 1}
    return [token_id for token_id in ids if token_id in known]


def test_a_config_names_it(tmp_path: Path) -> None:
    of(PLAIN, tmp_path)
    renderer = registry.make("renderer", Spec(name="template", options={"tokenizer": str(tmp_path)}))
    asyncio.run(renderer.load())
    assert preflight(renderer).bridges


RULED_TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
RULED_ENDS = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NINE = "{% if id|length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}{{ id }}"
NINE_LETTERS = (
    RULED_TURNS
    + "{% for c in m.tool_calls %}<tool_call>{{ c.function|tojson }}{% set id = c.id %}"
    + NINE
    + "</tool_call>{% endfor %}{% if m.role == 'tool' %}{% set id = m.tool_call_id %}"
    + NINE
    + "{% endif %}"
    + RULED_ENDS
)
ONE_CALL = (
    RULED_TURNS
    + "{% if m.tool_calls and m.tool_calls|length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    + "{% for c in m.tool_calls %}<tool_call>{{ c.function|tojson }}</tool_call>{% endfor %}"
    + RULED_ENDS
)
TEXT_OR_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is none %}"
    + "{% for c in m.tool_calls %}<tool_call>{{ c.function.arguments }}</tool_call>{% endfor %}"
    + "{% else %}{{ m.content }}{% endif %}"
    + RULED_ENDS
)


def called(*ids: str, content: str = "") -> list[Message]:
    """A turn with calls, and their results."""
    calls = tuple(ToolCall("bash", f'{{"n": "{call_id}"}}', call_id) for call_id in ids)
    results = [Message(role="tool", content=f"result {call_id}", tool_call_id=call_id) for call_id in ids]
    return [Message(role="assistant", content=content, tool_calls=calls), *results]


class TestTemplatesWithRules:
    def test_ids_are_shown_as_the_template_wants_them(self, tmp_path: Path) -> None:
        renderer = of(NINE_LETTERS, tmp_path)
        text = renderer.decode(renderer.render([user("go"), *called("call_s1_1_1_0", "abcdefghi")], [BASH]))
        shown = re.findall(r"([0-9a-z]{9})(?:</tool_call>|<\|im_end)", text)
        assert len(shown) == 4 and shown[:2] == shown[2:], "a result has the id of its call"
        assert shown[1] == "abcdefghi" and "call_s1" not in text.replace('"n": "call_s1_1_1_0"', "").replace(
            "result call_s1_1_1_0", ""
        )

    def test_two_calls_are_laid_out_one_by_one_where_a_turn_has_one(self, tmp_path: Path) -> None:
        renderer = of(ONE_CALL, tmp_path)
        text = renderer.decode(
            renderer.render([user("go"), *called("a", "b", content="Both."), user("on")], [BASH])
        )
        order = [text.index(part) for part in ("Both.", '"a"', "result a", '"b"', "result b", "on<")]
        assert order == sorted(order) and text.count("<|im_start|>assistant") == 3

    def test_a_turn_with_text_and_a_call_shows_the_call_at_least(self, tmp_path: Path) -> None:
        renderer = of(TEXT_OR_CALLS, tmp_path)
        text = renderer.decode(renderer.render([user("go"), *called("a", content="I look.")], [BASH]))
        assert '<tool_call>{"n": "a"}</tool_call>' in text

    def test_calls_that_would_not_be_read_are_refused_at_the_start(self, tmp_path: Path) -> None:
        other_way = ONE_CALL.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", "")
        with pytest.raises(ConfigError, match="does not write tool calls as <tool_call>"):
            of(other_way, tmp_path)
        assert made(tmp_path, tool_calls="none").stop_ids

    def test_a_preflight_without_proven_bridges_reports_it(self, tmp_path: Path) -> None:
        """Tools in front of the last user message move with every turn: nothing can be appended."""
        moving = (
            "{% for m in messages %}{% if loop.last and tools %}{{ tools|tojson }}{% endif %}"
            + RULED_TURNS.partition("%}")[2]
            + RULED_ENDS
        )
        report = preflight(of(moving, tmp_path, tool_calls="none"))  # pyright: ignore[reportArgumentType]
        assert report.offered == [] and not report.bridges
        assert "no bridge is proven" in report.problems[-1]
