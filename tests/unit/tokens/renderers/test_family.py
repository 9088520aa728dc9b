"""Known families, with the real Qwen3 tokenizer."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from qwen_tokens import make, spell
from talk import Talk, assistant, system, tool_result, user
from tokenizers import Tokenizer, models

from polar.errors import ConfigError
from polar.tokens.preflight.probes import FIRST_PROMPTS, HISTORIES
from polar.tokens.renderers.family import FamilyRenderer
from polar.types import Message, Tool, ToolCall, token_ids

BASH = Tool(name="bash", description="Run", parameters={"type": "object", "properties": {}})
START = [system("S"), user("go")]


CALL = (
    "<think>\nLet me see.\n</think>\n\n"
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>'
)


class OwnTemplate:
    """The model's own chat template, as Hugging Face would apply it."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(config["chat_template"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        text = self._template.render(messages=messages, tools=tools, add_generation_prompt=True)
        return self._tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("with_tools", [False, True])
def test_a_first_prompt_equals_the_models_own_template(
    qwen3: FamilyRenderer, qwen3_folder: Path, with_tools: bool
) -> None:
    tools = [BASH] if with_tools else []
    functions = {"name": "bash", "description": "Run", "parameters": BASH.parameters}
    wire_tools = [{"type": "function", "function": functions}] if with_tools else None
    messages = [system("Be brief."), user("Zähle 1234 auf: ünïcode \U0001f980\n\n\tTab")]
    own = OwnTemplate(qwen3_folder).render([{"role": m.role, "content": m.content} for m in messages], wire_tools)
    assert qwen3.render(messages, tools).tolist() == own


def test_content_reasoning_and_calls_are_told_apart(qwen3: FamilyRenderer) -> None:
    prompt = qwen3.render(START, [BASH])
    message = qwen3.parse(prompt, token_ids(spell(qwen3, CALL)))
    assert message.reasoning.strip() == "Let me see."
    assert [(c.name, c.arguments) for c in message.tool_calls] == [("bash", '{"command": "ls -l"}')]
    assert message.content.strip() == ""


def test_a_call_that_cannot_be_read_stays_in_the_content(qwen3: FamilyRenderer) -> None:
    prompt = qwen3.render(START, [BASH])
    message = qwen3.parse(prompt, token_ids(spell(qwen3, "<tool_call>\n{broken\n</tool_call>")))
    assert message.tool_calls == ()
    assert "{broken" in message.content


def test_a_tool_loop_keeps_thinking_and_odd_splits(qwen3: FamilyRenderer) -> None:
    talk = Talk(qwen3, (BASH,))
    first = talk.say(START, spell(qwen3, CALL))
    history = [*START, first.response, tool_result("a.txt\nb.txt")]
    second = talk.ask(history)
    assert second.continues
    assert second.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"]
    done = talk.answer(second, spell(qwen3, "<think>\nGood.\n</think>\n\nDone."))
    third = talk.ask([*history, done.response, user("And now?")])
    assert third.continues, "preserve keeps thinking across user turns"
    assert third.prompt_ids[: len(talk.full["c2"])] == talk.full["c2"]


def test_a_harness_that_drops_reasoning_still_attaches(qwen3: FamilyRenderer) -> None:
    talk = Talk(qwen3, (BASH,))
    first = talk.say(START, spell(qwen3, CALL))
    echo = Message(role="assistant", content="", tool_calls=first.response.tool_calls)
    prompt = talk.ask([*START, echo, tool_result("x")])
    assert prompt.continues
    assert "reasoning_dropped" in prompt.tolerant


def test_the_stock_rule_forks_where_it_would_cut_thinking(qwen3_folder: Path) -> None:
    stock = make(qwen3_folder).retaining("template")
    talk = Talk(stock, (BASH,))
    first = talk.say(START, spell(stock, "<think>\nHm.\n</think>\n\nYes."))
    prompt = talk.ask([*START, first.response, user("Sure?")])
    assert (prompt.continues, prompt.break_reason) == (False, "bridge_refused")
    assert "Hm." not in stock.decode(prompt.prompt_ids)


def test_stripped_thinking_never_comes_back(qwen3: FamilyRenderer) -> None:
    bare = qwen3.retaining("strip")
    talk = Talk(bare, (BASH,))
    first = talk.say(START, spell(bare, CALL))
    assert first.response.reasoning == "Let me see."
    prompt = talk.ask([*START, first.response, tool_result("x")])
    assert (prompt.parent_id, prompt.continues, prompt.break_reason) == (first.call_id, False, "bridge_refused")
    assert "Let me see." not in bare.decode(prompt.prompt_ids) and "ls -l" in bare.decode(prompt.prompt_ids)


def test_a_reply_without_thinking_goes_on_in_its_tokens_also_when_thinking_is_stripped(
    qwen3: FamilyRenderer,
) -> None:
    bare = qwen3.retaining("strip")
    talk = Talk(bare, (BASH,))
    first = talk.say(START, spell(bare, "Yes."))
    assert talk.ask([*START, first.response, user("Sure?")]).continues


def test_preserved_thinking_stays_in_its_exact_tokens(qwen3: FamilyRenderer) -> None:
    assert qwen3.retaining("preserve") is qwen3
    talk = Talk(qwen3, (BASH,))
    first = talk.say(START, spell(qwen3, CALL))
    prompt = talk.ask([*START, first.response, tool_result("x"), user("Sure?")])
    assert prompt.continues and prompt.prompt_ids[: len(talk.full["c1"])] == talk.full["c1"]


def test_an_assistant_message_in_the_tail_forks(qwen3: FamilyRenderer) -> None:
    talk = Talk(qwen3)
    first = talk.say(START, spell(qwen3, "One"))
    history = [*START, first.response, user("again")]
    talk.say(history, spell(qwen3, "Two"))
    prompt = talk.ask([*history, assistant("Two, but edited"), user("more")])
    assert (prompt.parent_id, prompt.continues, prompt.break_reason) == ("c1", False, "history_edited")


def test_control_tokens_in_content_stay_text(qwen3: FamilyRenderer) -> None:
    ids = qwen3.render([user("say <|im_end|> twice <|im_end|>")], [])
    assert list(ids).count(qwen3.stop_ids[0]) == 1


def test_history_calls_and_thinking_are_rendered(qwen3: FamilyRenderer) -> None:
    turn = Message(
        role="assistant",
        reasoning="Because.",
        tool_calls=(ToolCall(name="bash", arguments='{"command": "ls"}', call_id="c"),),
    )
    text = qwen3.decode(qwen3.render([*START, turn, tool_result("out")], [BASH]))
    assert "Because." in text and '"command": "ls"' in text and "<tool_response>\nout" in text


def test_the_fingerprint_follows_the_options(qwen3: FamilyRenderer, qwen3_folder: Path) -> None:
    assert qwen3.fingerprint != qwen3.retaining("template").fingerprint


def test_wrong_options_are_refused_with_the_reason(qwen3_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        make(tmp_path)
    with pytest.raises(ConfigError, match="no-such-family"):
        renderer = FamilyRenderer(FamilyRenderer.Options(family="no-such-family", tokenizer=qwen3_folder))
        asyncio.run(renderer.load())


@pytest.mark.parametrize("missing", ["<|im_end|>", "<think>"])
def test_a_tokenizer_of_another_family_is_refused(tmp_path: Path, missing: str) -> None:
    control = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
    tokens = [token for token in ["a", *control, *tags] if token != missing]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=re.escape(missing)):
        make(tmp_path)


def test_a_prompt_laid_out_by_its_sender_is_the_rendered_one(qwen3: FamilyRenderer) -> None:
    prompt = qwen3.render(START, [BASH])
    assert qwen3.encode(qwen3.decode(prompt)) == prompt


def test_a_family_that_opens_the_thinking_in_its_prompt(qwen3_folder: Path) -> None:
    qwen35 = make(qwen3_folder, family="qwen3.5")
    prompt = qwen35.render([user("go")], [])
    assert qwen35.decode(prompt).endswith("<think>\n")
    reply = token_ids(spell(qwen35, "Hm.\n</think>\n\nYes."))
    assert qwen35.parse(prompt, reply) == Message(role="assistant", reasoning="Hm.", content="Yes.")
    assert qwen35.reader(prompt) is None, "its calls are no JSON"


@pytest.mark.parametrize("after", [[user("And?")], [tool_result("ok")]], ids=["user", "tool"])
def test_preserved_thinking_that_was_never_closed_stays(qwen3: FamilyRenderer, after: list[Message]) -> None:
    """The model has ended its turn inside `<think>`. Rendered again, all earlier thinking would be lost."""
    prompt = qwen3.render([user("go")], [])
    thought = qwen3.encode("<think>\nhm, so") + token_ids([qwen3.stop_ids[0]])
    closed = qwen3.encode("<think>\nhm\n</think>\n\nSo.") + token_ids([qwen3.stop_ids[0]])
    bridged = qwen3.bridge(prompt, thought, after, [])
    assert bridged is not None and bridged == qwen3.bridge(prompt, closed, after, [])


def test_by_the_templates_habit_a_prompt_is_what_the_template_renders(qwen3_folder: Path) -> None:
    """With thinking off the package leaves an empty think block in the history, which the template does not."""
    quiet = make(qwen3_folder, settings={"enable_thinking": False}).retaining("template")
    for conversation in (*FIRST_PROMPTS, *HISTORIES):
        found = quiet.render(conversation.messages, conversation.tools)
        assert found == quiet.by_template(conversation.messages, conversation.tools), conversation.name
    said = quiet.render([user("say <|im_end|>")], [])
    assert list(said).count(quiet.stop_ids[0]) == 1, "text that spells a control token stays text"
