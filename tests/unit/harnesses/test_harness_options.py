"""Options that every packaged harness accepts, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from polar.errors import ConfigError
from polar.harnesses.base import Harness
from polar.registry import make
from polar.types import Spec

SKILL = "---\nname: {name}\ndescription: Tells colours.\n---\n\nSeven is blue.\n"
PACKAGED = ["claude_code", "codex", "gemini_cli", "opencode", "pi", "qwen_code"]


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        make("harness", Spec(name="pi", options=options))
    return str(refused.value)


@pytest.mark.parametrize("name", PACKAGED)
def test_all_six_take_a_program_servers_and_skills(name: str) -> None:
    options = {
        "program": ["their-own"],
        "mcp_servers": {"files": {"command": ["mcp-files"]}},
        "skills": {"chart": SKILL.format(name="chart")},
    }
    harness: Harness = make("harness", Spec(name=name, options=options))
    assert harness.program({}) == ("their-own",) and harness.requirements() == ()


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({}, "either command or url"),
        ({"command": ["x"], "url": "http://y"}, "either command or url"),
        ({"command": []}, "command"),
        ({"url": "file:///etc"}, "url"),
        ({"url": "http://y", "env": {"A": "1"}}, "env goes with command"),
        ({"command": ["x"], "headers": {"a": "1"}}, "headers with url"),
    ],
)
def test_a_server_is_a_program_or_an_address(server: dict[str, Any], why: str) -> None:
    assert why in refusal(mcp_servers={"files": server})


@pytest.mark.parametrize("name", ["Chart", "my_chart", "-chart", "chart-", "a--b", "", "x" * 64])
def test_names_are_those_that_all_harnesses_take(name: str) -> None:
    assert refusal(skills={name: SKILL.format(name=name)})
    assert refusal(mcp_servers={name: {"command": ["x"]}})


@pytest.mark.parametrize(
    "text",
    [
        "---\nname: chart\ndescription: x\n---\nBody",
        '---\nname: "chart"\ndescription: >\n  x\n---\nBody',
        "---\ndescription:\n  x\nname: chart\n---\n",
        "---\nname: 'chart'\nlicense: MIT\ndescription: x\n---",
        "---\r\nname: chart\r\ndescription: x\r\n---\r\nBody",
    ],
)
def test_a_skill(text: str) -> None:
    assert make("harness", Spec(name="pi", options={"skills": {"chart": text}}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Seven is blue.", "does not begin with front matter"),
        ("\n---\nname: chart\ndescription: x\n---\n", "does not begin with front matter"),
        ("---\nname: chart\ndescription: x\n", "does not begin with front matter"),
        ("---\nname: other\ndescription: x\n---\n", "no line `name: chart`"),
        ("---\ndescription: x\n---\nname: chart\n", "no line `name: chart`"),
        ("---\nname: chart\n---\ndescription: x", "no description"),
        ("---\nname: chart\ndescription:\n---\n", "no description"),
        ("---\ndescription:\nname: chart\n---\n", "no description"),
    ],
)
def test_a_skill_that_a_harness_would_leave_out_is_refused(text: str, why: str) -> None:
    assert why in refusal(skills={"chart": text})
