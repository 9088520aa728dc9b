"""What Claude Code is launched with, and what its headers mean."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from pydantic import ValidationError

from polar.errors import ConfigError, HarnessError
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.claude_code import CLAUDE_PACKAGES, MODEL_VARIABLES, ClaudeCode, ClaudeCodeOptions
from polar.registry import make
from polar.types import Message, Spec, Tool

MakeContext = Callable[..., HarnessContext]
LaunchClaude = Callable[..., Launch]
SKILL = "---\nname: tidy\ndescription: Tidies up.\n---\nSweep."


@pytest.fixture
def launch(session: MakeContext) -> LaunchClaude:
    def make_launch(
        instruction: str = "Say hello", key: str = "sk-1", tokens: int = 65536, **options: Any
    ) -> Launch:
        return ClaudeCode(ClaudeCodeOptions(**options)).launch(session(instruction, key, context_tokens=tokens))

    return make_launch


def flags_of(made: Launch) -> tuple[str, ...]:
    return made.argv[5:]


def settings_of(made: Launch) -> dict[str, Any]:
    return json.loads(made.home_files[".claude/settings.json"])


def test_the_whole_launch(launch: LaunchClaude) -> None:
    made = launch()
    assert made.argv == (
        *("/bin/sh", "-c", 'exec "$@" <"$0"', "/s/home/instruction.txt"),
        "/cache/@anthropic-ai/claude-code-linux-x64/claude",
        *("-p", "--dangerously-skip-permissions", "--settings", "/s/home/.claude/settings.json"),
    )
    assert sorted(made.home_files) == [".claude/polar-key", ".claude/settings.json", "instruction.txt"]
    assert made.home_files[".claude/polar-key"] == "sk-1"
    assert made.home_files["instruction.txt"] == "Say hello"
    assert made.workspace_files == {}


def test_the_settings(launch: LaunchClaude) -> None:
    settings = {"apiKeyHelper": "cat /s/home/.claude/polar-key", "skipWebFetchPreflight": True}
    assert settings_of(launch()) == settings


def test_the_environment(launch: LaunchClaude) -> None:
    assert launch().env == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_MODEL": "polar",
        "ANTHROPIC_SMALL_FAST_MODEL": "polar",
        "ANTHROPIC_DEFAULT_FABLE_MODEL": "polar",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "polar",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "polar",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "polar",
        "CLAUDE_CODE_SUBAGENT_MODEL": "polar",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "16384",
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }


def test_no_other_model_is_ever_asked_for(session: MakeContext) -> None:
    made = ClaudeCode(ClaudeCodeOptions()).launch(session(model="Qwen/any:7b"))
    assert {made.env[name] for name in MODEL_VARIABLES} == {"Qwen/any:7b"}


def test_the_key_is_only_in_its_file(launch: LaunchClaude) -> None:
    made = launch(key="sk-secret")
    assert "sk-secret" not in str(made.argv) + str(made.env)
    assert [name for name, text in made.home_files.items() if "sk-secret" in text] == [".claude/polar-key"]


def test_a_home_with_a_space_is_one_word(session: MakeContext) -> None:
    context = structs.replace(session(), home="/it's a/home")
    made = ClaudeCode(ClaudeCodeOptions()).launch(context)
    assert shlex.split(settings_of(made)["apiKeyHelper"]) == ["cat", "/it's a/home/.claude/polar-key"]


@pytest.mark.parametrize(
    "instruction",
    ["-", "--help", "@notes.txt", "a\0b", " \n x \n", "x" * 200_000, "/app/main.py fails", "//", "/"],
)
def test_an_instruction_goes_by_stdin_as_it_is(launch: LaunchClaude, instruction: str) -> None:
    made = launch(instruction)
    assert made.home_files["instruction.txt"] == instruction
    assert instruction == "-" or instruction not in made.argv


@pytest.mark.parametrize("instruction", ["/help", "/compact now", "  /init", "/mcp:list\nx"])
def test_what_would_be_a_command_is_refused(launch: LaunchClaude, instruction: str) -> None:
    with pytest.raises(HarnessError, match=r"Claude Code would run '/.*command of its own; begin with another"):
        launch(instruction)


def test_options(launch: LaunchClaude) -> None:
    made = launch(
        bare=True, max_turns=7, append_system_prompt="-Be terse", max_tokens=500, extra_args=("--effort", "low")
    )
    assert flags_of(made)[4:] == (
        *("--bare", "--max-turns", "7"),
        *("--append-system-prompt-file", "/s/home/.claude/polar-append-system-prompt.md"),
        *("--effort", "low"),
    )
    assert made.home_files[".claude/polar-append-system-prompt.md"] == "-Be terse"
    assert made.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "500"


def test_servers_of_tools(launch: LaunchClaude) -> None:
    servers = {
        "a-program": {"command": ["npx", "serve", "--all"], "env": {"A": "1"}},
        "far": {"url": "http://127.0.0.1:8/mcp", "headers": {"x-key": "1"}},
    }
    made = launch(mcp_servers=servers, extra_args=("--effort", "low"))
    assert json.loads(made.home_files[".claude/polar-mcp.json"])["mcpServers"] == {
        "a-program": {
            "type": "stdio",
            "command": "npx",
            "args": ["serve", "--all"],
            "env": {"A": "1"},
            "alwaysLoad": True,
        },
        "far": {"type": "http", "url": "http://127.0.0.1:8/mcp", "headers": {"x-key": "1"}, "alwaysLoad": True},
    }
    assert flags_of(made)[4:] == (
        *("--mcp-config", "/s/home/.claude/polar-mcp.json", "--strict-mcp-config"),
        *("--effort", "low"),
    )
    assert made.env["MCP_TIMEOUT"] == "60000"


def test_what_looks_like_a_variable_is_none(launch: LaunchClaude) -> None:
    """Expands like Claude Code: once, and headers twice."""
    settings = {"near": {"command": ["run", "${A}"], "env": {"B": "$C"}}, "far": {"url": "http://h/${D}"}}
    settings["far"]["headers"] = {"e": "a${F}"}
    written = json.loads(launch(mcp_servers=settings).home_files[".claude/polar-mcp.json"])["mcpServers"]
    near, far = written["near"], written["far"]
    assert [with_variables(text) for text in near["args"]] == ["${A}"]
    assert with_variables(near["env"]["B"]) == "$C"
    assert with_variables(far["url"]) == "http://h/${D}"
    assert with_variables(with_variables(far["headers"]["e"])) == "a${F}"


def with_variables(text: str) -> str:
    """A text in which no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_skills_lie_where_it_looks_for_them(launch: LaunchClaude) -> None:
    made = launch(skills={"tidy": SKILL})
    assert made.home_files[".claude/skills/tidy/SKILL.md"] == SKILL
    assert settings_of(made)["skillListingBudgetFraction"] == 1


def test_bare_has_no_skills() -> None:
    with pytest.raises(ValidationError, match="with bare the model has no tool that loads skills"):
        ClaudeCodeOptions(bare=True, skills={"tidy": SKILL})


def test_a_program_of_the_image(launch: LaunchClaude) -> None:
    claude = ClaudeCode(ClaudeCodeOptions(program=("mise", "claude"), version="2.0.0"))
    assert claude.requirements() == () and claude.program({}) == ("mise", "claude")
    assert launch(program=("mise", "claude")).argv[4:7] == ("mise", "claude", "-p")


def test_what_it_leaves(launch: LaunchClaude) -> None:
    made = launch(key="sk-secret")
    assert made.logs == (".claude/projects",)
    assert not any(name.startswith(made.logs) for name, text in made.home_files.items() if "sk-secret" in text)


def test_context_files(launch: LaunchClaude) -> None:
    assert "CLAUDE_CODE_DISABLE_CLAUDE_MDS" not in launch(context_files=True).env


@pytest.mark.parametrize(("tokens", "reply"), [(32768, "8192"), (131072, "32000"), (1_000_000, "32000")])
def test_a_reply_leaves_room_for_the_history(launch: LaunchClaude, tokens: int, reply: str) -> None:
    env = launch(tokens=tokens).env
    assert (env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == (str(tokens), reply)


@pytest.mark.parametrize("machine", CLAUDE_PACKAGES, ids=" ".join)
def test_the_package_is_chosen_by_the_machine(on_machine: Callable[..., None], machine: tuple[str, str]) -> None:
    on_machine(*machine)
    assert ClaudeCode(ClaudeCodeOptions()).requirements() == (NpmPack(CLAUDE_PACKAGES[machine], "2.1.325"),)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"x-claude-code-session-id": "1"}, "agent"),
        ({"x-claude-code-session-id": "1", "x-claude-code-agent-id": "a"}, "subagent"),
        (
            {
                "x-claude-code-session-id": "1",
                "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "a",
            },
            "subagent",
        ),
    ],
)
def test_what_a_call_is_for(headers: dict[str, str], kind: str) -> None:
    assert ClaudeCode(ClaudeCodeOptions()).profile().kind_of(headers, tools=(Tool("Bash"),)) == kind


@pytest.mark.parametrize("headers", [{}, {"x-claude-code-agent-id": "a"}], ids=["main", "sub-agent"])
def test_a_summary_is_known_by_the_words_that_ask_for_it(headers: dict[str, str]) -> None:
    profile = ClaudeCode(ClaudeCodeOptions()).profile()
    asked = Message("user", "CRITICAL: Respond with TEXT ONLY. No tools.\n\nWrap it in a <summary> block.")
    assert profile.kind_of(headers, (asked,), (Tool("Bash"),)) == "compaction"
    for other in (Message("tool", asked.content), Message("user", "CRITICAL: Respond with TEXT ONLY. Why?")):
        assert profile.kind_of(headers, (asked, other), (Tool("Bash"),)) != "compaction"


def test_agents_are_told_apart() -> None:
    profile = ClaudeCode(ClaudeCodeOptions()).profile()
    assert profile.attribution({"x-claude-code-session-id": "1"}) == ("1", "", "")
    nested = {"x-claude-code-session-id": "1", "x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"}
    assert profile.attribution(nested) == ("1", "b", "a")


def test_the_registry_knows_it() -> None:
    made: Harness = make("harness", Spec(name="claude_code", options={"max_turns": 3}))
    assert (made.name, made.version) == ("claude_code", "2.1.325")
    with pytest.raises(ConfigError, match="max_turns"):
        make("harness", Spec(name="claude_code", options={"max_turns": 0}))
