"""What OpenCode is launched with, for each API, and what its headers mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from polar.errors import ConfigError
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.opencode import OPENCODE_PACKAGES, OpenCode, OpenCodeOptions
from polar.registry import make
from polar.types import Spec, Tool

MakeContext = Callable[..., HarnessContext]
LaunchOpenCode = Callable[..., Launch]
CONFIG = ".config/opencode/opencode.json"
SKILL = "---\nname: chart\ndescription: Tells colours.\n---\n\nSeven is blue.\n"
SERVERS = {
    "files": {"command": ["mcp-files", "--root", "."], "env": {"TOKEN": "$HOME"}},
    "docs": {"url": "http://127.0.0.1:9/mcp", "headers": {"x-key": "!id {env:HOME}"}},
}


@pytest.fixture
def launch(session: MakeContext) -> LaunchOpenCode:
    def make_launch(
        instruction: str = "Say hello", key: str = "sk-1", model: str = "polar", **options: Any
    ) -> Launch:
        return OpenCode(OpenCodeOptions(**options)).launch(session(instruction, key, model))

    return make_launch


def settings_of(made: Launch) -> dict[str, Any]:
    return json.loads(made.home_files[CONFIG])


def test_the_whole_launch(launch: LaunchOpenCode) -> None:
    made = launch()
    assert made.argv == (
        *("/bin/sh", "-c", 'exec "$@" <"$0"', "/s/home/instruction.txt"),
        *("/bin/sh", "-c", 'export PATH="$PATH:$0"; exec "$@"', "/cache/@vscode/ripgrep-linux-x64/bin"),
        "/cache/opencode-linux-x64-baseline/bin/opencode",
        *("run", "-m", "polar/polar", "--title", "s-1"),
    )
    assert made.env == {
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_DISABLE_CLAUDE_CODE_PROMPT": "1",
        "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
    }
    assert made.workspace_files == {}
    assert made.logs[:2] == (".local/share/opencode/log", ".local/share/opencode/opencode.db")


def test_the_settings(launch: LaunchOpenCode) -> None:
    assert settings_of(launch()) == {
        "model": "polar/polar",
        "small_model": "polar/polar",
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "permission": {"*": "allow"},
        "provider": {
            "polar": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "sk-1"},
                "models": {"polar": {"tool_call": True, "limit": {"context": 65536, "output": 16384}}},
            }
        },
    }


def test_its_folder_looks_complete_so_that_nothing_is_fetched(launch: LaunchOpenCode) -> None:
    files = launch(version="1.2.3").home_files
    lock = json.loads(files[".config/opencode/package-lock.json"])
    assert lock["packages"][""]["dependencies"] == {"@opencode-ai/plugin": "1.2.3"}
    assert files[".config/opencode/node_modules/.keep"] == ""


@pytest.mark.parametrize(
    ("api", "sdk", "base_url"),
    [
        ("openai-completions", "@ai-sdk/openai-compatible", "http://127.0.0.1:9/v1"),
        ("openai-responses", "@ai-sdk/openai", "http://127.0.0.1:9/v1"),
        ("anthropic-messages", "@ai-sdk/anthropic", "http://127.0.0.1:9/v1"),
        ("google-generative-ai", "@ai-sdk/google", "http://127.0.0.1:9/v1beta"),
    ],
)
def test_each_api_has_its_own_sdk_and_base_url(launch: LaunchOpenCode, api: str, sdk: str, base_url: str) -> None:
    provider = settings_of(launch(api=api))["provider"]["polar"]
    assert (provider["npm"], provider["options"]["baseURL"]) == (sdk, base_url)


def test_a_model_with_a_slash(launch: LaunchOpenCode) -> None:
    made = launch(model="Qwen/any:7b")
    assert "polar/Qwen/any:7b" in made.argv
    assert list(settings_of(made)["provider"]["polar"]["models"]) == ["Qwen/any:7b"]


def test_the_key_is_only_in_the_settings(launch: LaunchOpenCode) -> None:
    made = launch(key="sk-secret")
    assert "sk-secret" not in str(made.argv) + str(made.env)
    assert [name for name, text in made.home_files.items() if "sk-secret" in text] == [CONFIG]


@pytest.mark.parametrize("instruction", ["-", "--help", "@notes.txt", "/init", "a\0b", " \n x \n", "x" * 200_000])
def test_any_instruction_goes_by_stdin_as_it_is(launch: LaunchOpenCode, instruction: str) -> None:
    made = launch(instruction)
    assert made.home_files["instruction.txt"] == instruction
    assert made.argv[-2:] == ("--title", "s-1")


def test_options(launch: LaunchOpenCode) -> None:
    made = launch(
        max_tokens=500,
        append_system_prompt="Be terse.",
        title_call=True,
        context_files=True,
        extra_args=("--pure",),
    )
    assert made.argv[9:] == ("run", "-m", "polar/polar", "--pure")
    assert settings_of(made)["instructions"] == ["/s/home/.config/opencode/polar-append-system-prompt.md"]
    assert made.home_files[".config/opencode/polar-append-system-prompt.md"] == "Be terse."
    assert settings_of(made)["provider"]["polar"]["models"]["polar"]["limit"]["output"] == 500
    assert "OPENCODE_DISABLE_PROJECT_CONFIG" not in made.env


@pytest.mark.parametrize("machine", OPENCODE_PACKAGES, ids=" ".join)
def test_the_package_is_chosen_by_the_machine(on_machine: Callable[..., None], machine: tuple[str, str]) -> None:
    on_machine(*machine)
    opencode, ripgrep = OpenCode(OpenCodeOptions()).requirements()
    assert opencode == NpmPack(OPENCODE_PACKAGES[machine], "1.18.33")
    assert ripgrep.package.startswith("@vscode/ripgrep-")


def test_servers_of_tools(launch: LaunchOpenCode) -> None:
    made = launch(mcp_servers=SERVERS)
    started = {"enabled": True, "timeout": 60_000}
    assert settings_of(made)["mcp"] == {
        "files": {
            "type": "local",
            "command": ["mcp-files", "--root", "."],
            "environment": {"TOKEN": "$HOME"},
            **started,
        },
        "docs": {
            "type": "remote",
            "url": "http://127.0.0.1:9/mcp",
            "headers": {"x-key": "!id {env:HOME}"},
            "oauth": False,
            **started,
        },
    }


@pytest.mark.parametrize("key", ["{env:HOME}", "{file:/etc/passwd}", "a{env:A}b{file:~/x}", "{}", "{environment}"])
def test_settings_are_not_expanded(launch: LaunchOpenCode, key: str) -> None:
    made = launch(key=key)
    assert "{env:" not in made.home_files[CONFIG] and "{file:" not in made.home_files[CONFIG]
    assert settings_of(made)["provider"]["polar"]["options"]["apiKey"] == key


def test_skills(launch: LaunchOpenCode) -> None:
    made = launch(skills={"chart": SKILL})
    assert made.home_files[".config/opencode/skills/chart/SKILL.md"] == SKILL


def test_a_program_of_the_image(session: MakeContext) -> None:
    """It uses the image's own ripgrep, if any."""
    harness = OpenCode(OpenCodeOptions(program=("opencode",)))
    assert harness.requirements() == ()
    assert harness.program({}) == ("opencode",)
    assert harness.launch(session()).argv[4:6] == ("opencode", "run")


@pytest.mark.parametrize(
    ("headers", "has_tools", "kind"),
    [
        ({"x-session-id": "ses_1"}, True, "agent"),
        ({"x-session-id": "ses_1"}, False, "compaction"),
        ({"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, True, "subagent"),
        ({"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}, False, "subagent"),
    ],
    ids=["main", "summary", "sub-agent", "sub-agent without tools"],
)
def test_what_a_call_is_for(headers: dict[str, str], has_tools: bool, kind: str) -> None:
    assert OpenCode(OpenCodeOptions()).profile().kind_of(headers, tools=(Tool("bash"),) * has_tools) == kind


def test_with_titles_a_call_without_tools_may_be_one() -> None:
    profile = OpenCode(OpenCodeOptions(title_call=True)).profile()
    assert profile.kind_of({"x-session-id": "ses_1"}) == "auxiliary"


def test_its_sessions_are_told_apart() -> None:
    profile = OpenCode(OpenCodeOptions()).profile()
    assert profile.attribution({"x-session-id": "ses_1", "x-session-affinity": "ses_1"}) == ("ses_1", "")
    assert profile.attribution({"x-session-id": "ses_2", "x-parent-session-id": "ses_1"}) == ("ses_2", "ses_1")


def test_the_registry_knows_it() -> None:
    made: Harness = make("harness", Spec(name="opencode", options={"title_call": True}))
    assert (made.name, made.version) == ("opencode", "1.18.33")
    with pytest.raises(ConfigError, match="max_turns"):
        make("harness", Spec(name="opencode", options={"max_turns": 3}))
