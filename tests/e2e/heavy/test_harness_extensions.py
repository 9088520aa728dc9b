"""What each harness can be given beside its own tools, and what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import (
    DESCRIPTION,
    LOOKS_LIKE_A_VARIABLE,
    SKILL,
    Asking,
    assert_learnt,
    noting_program,
    program_of,
    server,
    text_of,
)
from harness_loop import shell_call, tool_call

from polar import registry
from polar.harnesses.base import Harness
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Spec

TOOL_NAMES = {
    "codex": "mcp__colours__lookup",
    "claude_code": "mcp__colours__lookup",
    "gemini_cli": "mcp_colours_lookup",
    "qwen_code": "mcp__colours__lookup",
    "opencode": "colours_lookup",
    "pi": "mcp__colours__lookup",
}
"""How each spells the tool `lookup` of the server `colours`."""
SKILL_CALLS = {
    "codex": shell_call("codex", "cat ~/.codex/skills/colour-chart/SKILL.md"),
    "claude_code": tool_call("Skill", {"skill": "colour-chart"}),
    "gemini_cli": tool_call("activate_skill", {"name": "colour-chart"}),
    "qwen_code": tool_call("skill", {"skill": "colour-chart"}),
    "opencode": tool_call("skill", {"name": "colour-chart"}),
    "pi": shell_call("pi", "cat ~/.pi/agent/skills/colour-chart/SKILL.md"),
}
"""How the model loads the skill; Codex and pi tell it which file to read."""
LOGS = {
    "codex": ".codex/sessions",
    "claude_code": ".claude/projects",
    "gemini_cli": ".gemini/tmp",
    "qwen_code": ".qwen/projects",
    "opencode": ".local/share/opencode",
    "pi": ".pi/agent/sessions",
}
TURNS = {"claude_code": 1, "gemini_cli": 53, "qwen_code": 53}
"""The exit code of those that count turns, after too many."""
HARNESSES = list(TOOL_NAMES)
NO_SUCH_SERVER = {"colours": {"command": ["false"]}}

Ask = Callable[[str, str], Asking]


@pytest.fixture
def ask(smollm2: SmolLM2Renderer, tmp_path: Path) -> Ask:
    return lambda harness, call: Asking(harness, call, smollm2, tmp_path)


@pytest.mark.parametrize("transport", ["program", "http"])
@pytest.mark.parametrize(
    ("harness", "options"),
    [*((name, {}) for name in HARNESSES), ("claude_code", {"bare": True})],
    ids=[*HARNESSES, "claude_code-bare"],
)
async def test_a_tool_of_a_server(
    harness: str, options: dict[str, Any], transport: str, ask: Ask, report: Any
) -> None:
    asking = ask(harness, tool_call(TOOL_NAMES[harness], {"number": 7}))
    async with server(transport) as settings:
        outcome = await asking.run(mcp_servers={"colours": settings}, **options)
    report(harness, {**options, "tool": transport}, outcome)
    assert f"\n{TOOL_NAMES[harness]}(number: integer" in asking.prompts[0], "offered with the first request"
    assert_learnt(asking, outcome)


@pytest.mark.parametrize("where", ["variable", "argument", "header"])
@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_server_gets_its_settings_as_they_are_written(harness: str, where: str, ask: Ask) -> None:
    asking = ask(harness, tool_call(TOOL_NAMES[harness], {"number": 7}))
    async with server("http" if where == "header" else "program", LOOKS_LIKE_A_VARIABLE) as settings:
        if where == "argument":
            settings = {"command": ["env", f"ANSWER={LOOKS_LIKE_A_VARIABLE}", *settings["command"]]}
        outcome = await asking.run(mcp_servers={"colours": settings})
    assert_learnt(asking, outcome, LOOKS_LIKE_A_VARIABLE)


async def test_codex_ends_when_a_server_does_not_start(ask: Ask) -> None:
    outcome = await ask("codex", "").run(mcp_servers=NO_SUCH_SERVER)
    failure = outcome.result.failure
    assert outcome.result.exit_code == 1 and outcome.calls == []
    assert failure is not None and (failure.where, failure.agent) == ("harness", False)


@pytest.mark.parametrize("harness", [name for name in HARNESSES if name != "codex"])
async def test_the_others_go_on_without_it(harness: str, ask: Ask) -> None:
    asking = ask(harness, "")
    outcome = await asking.run(mcp_servers=NO_SUCH_SERVER)
    assert outcome.result.exit_code == 0
    assert TOOL_NAMES[harness] not in asking.prompts[0]


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_skill(harness: str, ask: Ask, report: Any) -> None:
    asking = ask(harness, SKILL_CALLS[harness])
    outcome = await asking.run(skills={"colour-chart": SKILL})
    report(harness, {"skill": True}, outcome)
    assert "colour-chart" in asking.prompts[0] and DESCRIPTION in asking.prompts[0]
    assert_learnt(asking, outcome)


@pytest.mark.parametrize("harness", TURNS)
async def test_too_many_turns(harness: str, ask: Ask) -> None:
    outcome = await ask(harness, shell_call(harness, "echo one")).run(max_turns=1)
    assert outcome.result.exit_code == TURNS[harness]
    assert outcome.kinds == ["agent"]


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_program_of_the_image_and_what_it_leaves(harness: str, ask: Ask, tmp_path: Path) -> None:
    own = await noting_program(harness, tmp_path)
    outcome = await ask(harness, shell_call(harness, "echo one")).run(program=[own])
    assert outcome.result.exit_code == 0 and len(outcome.calls) == 2
    transcript = text_of(tmp_path / "home" / LOGS[harness])
    assert "echo one" in transcript and "That is all." in transcript
    assert "sk-polar-" not in transcript, "what is kept does not hold the key"
    # Gemini CLI gets its key from a variable, and writes it nowhere.
    assert ("sk-polar-" in text_of(tmp_path / "home")) == (harness != "gemini_cli")


@pytest.mark.parametrize("harness", HARNESSES)
async def test_a_program_tells_its_version(harness: str, tmp_path: Path) -> None:
    made: Harness = registry.make("harness", Spec(name=harness))
    process = await asyncio.create_subprocess_exec(
        *(*await program_of(harness), "--version"),
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0 and made.version in printed.decode().split()


@pytest.mark.parametrize(
    "call",
    [tool_call("glob", {"pattern": "*.txt"}), tool_call("grep", {"pattern": "zebra"})],
    ids=["glob", "grep"],
)
async def test_opencode_has_a_program_to_search_with(call: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fetch one while it runs."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    asking = ask("opencode", call)
    outcome = await asking.run()
    assert outcome.result.exit_code == 0
    assert "No files found" in asking.prompts[1].removeprefix(asking.prompts[0])


async def test_pi_with_the_tools_of_a_server_alone(ask: Ask) -> None:
    asking = ask("pi", tool_call(TOOL_NAMES["pi"], {"number": 7}))
    async with server("program") as options:
        outcome = await asking.run(mcp_servers={"colours": options}, tools=[])
    assert "\nbash(" not in asking.prompts[0]
    assert_learnt(asking, outcome)
