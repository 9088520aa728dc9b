"""Which models we lay conversations out for as their own templates do, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from qwen_tokens import make
from real_families import (
    AS_IS,
    DEEPSEEK,
    DEEPSEEK_AS_IS,
    FAMILIES,
    LLAMA,
    LLAMA_SYSTEM,
    QWEN3,
    QWEN3_QUIET,
    QWEN3_QUIET_AS_IS,
    SMOLLM2,
    RealFamily,
    differences,
    loaded,
    table,
)
from talk import Talk, system, user

from polar.errors import ConfigError, HarnessError
from polar.tokens.base import Renderer
from polar.tokens.preflight.checks import preflight, without_bridges
from polar.tokens.preflight.probes import CALL, FIRST_PROMPTS, HISTORIES, QUESTION, RESULT, TOOL
from polar.tokens.renderers.chat_template import ChatTemplate

pytestmark = pytest.mark.check  # loads eleven tokenizers

PAGE = Path(__file__).parents[4] / "docs" / "design" / "rendering-parity.md"
START = [system("S"), user("go")]


@pytest.fixture(scope="module", autouse=True)
def registries_are_there() -> None:
    try:
        for which in FAMILIES:
            loaded(which)
    except (HarnessError, ConfigError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("which", [QWEN3, LLAMA, LLAMA_SYSTEM, SMOLLM2, *AS_IS], ids=str)
def test_every_probe_is_laid_out_as_the_models_own_template_does_it(which: RealFamily) -> None:
    found = differences(which, [*FIRST_PROMPTS, *HISTORIES])
    assert found and set(found.values()) == {""}


def test_thinking_that_is_switched_off_is_in_our_histories_and_not_in_the_templates() -> None:
    found = differences(QWEN3_QUIET, [*FIRST_PROMPTS, *HISTORIES])
    assert not any(found[probe.name] for probe in FIRST_PROMPTS)
    assert "<think>" in found["a reply"] and found["thinking before a reply"] == ""


def test_a_template_that_leaves_the_end_of_a_call_out_is_found() -> None:
    found = differences(DEEPSEEK, HISTORIES)
    assert "where the template writes" in found["a call and its result"] and found["a reply"] == ""


def test_the_page_shows_what_is_found_here() -> None:
    assert table() in PAGE.read_text(), "print the new one with `python tests/unit/tokens/real_families.py`"


@pytest.mark.parametrize("which", [DEEPSEEK, QWEN3_QUIET, QWEN3_QUIET_AS_IS], ids=str)
def test_by_a_habit_that_is_not_ours_nothing_is_bridged(which: RealFamily) -> None:
    assert continued(loaded(which).retaining("template")) == (False, "bridge_refused")


@pytest.mark.parametrize("which", [DEEPSEEK, DEEPSEEK_AS_IS], ids=str)
def test_a_family_that_is_not_proven_forks_whatever_is_kept(which: RealFamily) -> None:
    renderer = loaded(which)
    assert not preflight(renderer).bridges
    assert continued(renderer)[0], "left to itself it would go on"
    assert continued(without_bridges(renderer)) == (False, "bridge_refused")


def test_another_models_family_is_found_out_by_its_first_prompt() -> None:
    wrong = loaded(RealFamily("Qwen3 by mistake", QWEN3.package, "qwen3.5"))
    report = preflight(wrong)
    assert not report.bridges and "first prompts as its own template writes them" in report.problems[0]


def test_glue_missing_in_the_history_is_reported_and_exact_tokens_still_continue() -> None:
    report = preflight(loaded(QWEN3_QUIET))
    (glue,) = (finding for finding in report.findings if finding.about == "glue")
    assert glue.state == "failed" and r"'<think>\n\n</think>\n\n', which is missing in the history" in glue.detail
    assert report.bridges and continued(loaded(QWEN3_QUIET)) == (True, "")


def continued(renderer: Renderer) -> tuple[bool, str]:
    talk = Talk(renderer)
    first = talk.say(START, [*renderer.encode("Yes."), renderer.stop_ids[0]])
    prompt = talk.ask([*START, first.response, user("Sure?")])
    return prompt.continues, prompt.break_reason


class TestOwnTemplate:
    def test_a_folder_without_one_has_none(self, tmp_path: Path) -> None:
        assert ChatTemplate.load(tmp_path) is None
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": null}')
        assert ChatTemplate.load(tmp_path) is None

    def test_a_file_of_its_own_comes_first(self, tmp_path: Path) -> None:
        config = '{"chat_template": "old", "bos_token": {"content": "<s>"}, "eos_token": null}'
        (tmp_path / "tokenizer_config.json").write_text(config)
        (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
        template = ChatTemplate.load(tmp_path)
        assert template is not None and template.text([{"role": "user", "content": "hi"}], None, {}) == "<s>hi"

    def test_what_a_template_refuses_is_raised(self) -> None:
        template = ChatTemplate("{{ raise_exception('no system') }}", {})
        with pytest.raises(ValueError, match="no system"):
            template.text([], None, {})

    def test_arguments_that_are_no_json_are_shown_as_they_are(self) -> None:
        template = ChatTemplate("{% for c in messages[0].tool_calls %}{{ c.function.arguments }}{% endfor %}", {})
        calls = [{"function": {"name": "f", "arguments": "{broken"}}]
        assert template.text([{"role": "assistant", "content": "", "tool_calls": calls}], None, {}) == "{broken"

    def test_a_template_that_shows_no_call_says_nothing_about_calls(self) -> None:
        template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
        calls = [{"function": {"name": "f", "arguments": "{}"}}]
        with pytest.raises(ValueError, match="shows no tool calls"):
            template.text([{"role": "assistant", "content": "", "tool_calls": calls}], None, {})

    def test_a_renderer_without_one_has_nothing_to_compare(self, qwen3_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").symlink_to(qwen3_folder / "tokenizer.json")
        renderer = make(tmp_path)
        assert renderer.by_template([QUESTION, CALL, RESULT], [TOOL]) is None
        report = preflight(renderer)
        assert report.bridges and "no template to compare with" in report.findings[0].detail
