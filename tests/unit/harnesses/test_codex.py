"""What Codex CLI is launched with, and what its headers mean."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from polar.errors import ConfigError, HarnessError
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.harnesses.codex import BUILDS, Codex, CodexOptions
from polar.registry import make
from polar.toml.text import toml_table
from polar.types import Spec, Tool

MakeContext = Callable[..., HarnessContext]
LaunchCodex = Callable[..., Launch]


@pytest.fixture
def launch(session: MakeContext) -> LaunchCodex:
    def make_launch(instruction: str = "Say hello", key: str = "sk-1", **options: Any) -> Launch:
        return Codex(CodexOptions(**options)).launch(session(instruction, key))

    return make_launch


def settings_of(made: Launch) -> dict[str, Any]:
    return tomllib.loads(made.home_files[".codex/config.toml"])


def test_the_whole_launch(launch: LaunchCodex) -> None:
    made = launch()
    assert made.argv == (
        *("/bin/sh", "-c", 'exec "$@" <"$0"', "/s/home/instruction.txt"),
        "/cache/@openai/codex/vendor/x86_64-unknown-linux-musl/bin/codex",
        *("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "-"),
    )
    assert made.env == {}
    assert made.workspace_files == {}
    assert sorted(made.home_files) == [".codex/config.toml", "instruction.txt"]


def test_the_settings(launch: LaunchCodex) -> None:
    assert settings_of(launch()) == {
        "model": "polar",
        "model_provider": "polar",
        "model_context_window": 65536,
        "model_auto_compact_token_limit": 49152,
        "check_for_update_on_startup": False,
        "project_doc_max_bytes": 0,
        "analytics": {"enabled": False},
        "features": {"plugins": False, "unbounded_connection_retries": False},
        "model_providers": {
            "polar": {
                "name": "polar",
                "base_url": "http://127.0.0.1:9/v1",
                "wire_api": "responses",
                "experimental_bearer_token": "sk-1",
                "stream_idle_timeout_ms": 3_600_000,
            }
        },
    }


def test_the_key_is_only_in_the_settings(launch: LaunchCodex) -> None:
    made = launch(key="sk-secret")
    assert "sk-secret" not in str(made.argv) + str(made.env)
    assert [name for name, text in made.home_files.items() if "sk-secret" in text] == [".codex/config.toml"]


@pytest.mark.parametrize(
    "instruction", ["-", "--help", "@notes.txt", "/compact", "a\0b", " \n x \n", "x" * 200_000]
)
def test_any_instruction_goes_by_stdin_as_it_is(launch: LaunchCodex, instruction: str) -> None:
    made = launch(instruction)
    assert made.argv[-1] == "-"
    assert made.home_files["instruction.txt"] == instruction


def test_options(launch: LaunchCodex) -> None:
    made = launch(
        append_system_prompt='Be "terse".\n\\ \x7f ü',
        context_files=True,
        extra_args=("-c", "hide_agent_reasoning=true"),
    )
    settings = settings_of(made)
    assert settings["developer_instructions"] == 'Be "terse".\n\\ \x7f ü'
    assert "project_doc_max_bytes" not in settings
    assert made.argv[-3:] == ("-c", "hide_agent_reasoning=true", "-")


@pytest.mark.parametrize(
    "text", ["", 'a"b', "a\\b", "a\nb\tc\r", "\x00\x1f\x7f", "ü 🌍 \u2028", "[x]\n#", "a.b = c"]
)
def test_any_text_can_be_a_setting_or_its_name(text: str) -> None:
    settings: dict[str, Any] = {"a": text, "b": {"c": text, "d": {}}, "e": [text, text], text: {text: True}}
    assert tomllib.loads(toml_table(settings)) == settings


def test_servers_of_tools(launch: LaunchCodex) -> None:
    servers = {
        "a-program": {"command": ["npx", "serve", "--all"], "env": {"A.B": "$HOME"}},
        "far": {"url": "http://127.0.0.1:8/mcp", "headers": {"x-key": "1"}},
    }
    held_back = {"required": True, "startup_timeout_sec": 60}
    assert settings_of(launch(mcp_servers=servers))["mcp_servers"] == {
        "a-program": {"command": "npx", "args": ["serve", "--all"], "env": {"A.B": "$HOME"}, **held_back},
        "far": {"url": "http://127.0.0.1:8/mcp", "http_headers": {"x-key": "1"}, **held_back},
    }
    assert "mcp_servers" not in settings_of(launch())


def test_skills_lie_where_it_looks_for_them(launch: LaunchCodex) -> None:
    text = "---\nname: tidy\ndescription: Tidies up.\n---\nSweep."
    assert launch(skills={"tidy": text}).home_files[".codex/skills/tidy/SKILL.md"] == text


def test_a_program_of_the_image(launch: LaunchCodex) -> None:
    codex = Codex(CodexOptions(program=("mise", "codex"), version="0.99.0"))
    assert codex.requirements() == () and codex.program({}) == ("mise", "codex")
    assert launch(program=("mise", "codex")).argv[4:7] == ("mise", "codex", "exec")


def test_what_it_leaves(launch: LaunchCodex) -> None:
    made = launch(key="sk-secret")
    assert made.logs == (".codex/sessions",)
    assert not any(name.startswith(made.logs) for name, text in made.home_files.items() if "sk-secret" in text)


@pytest.mark.parametrize("machine", BUILDS, ids=" ".join)
def test_the_build_is_chosen_by_the_machine(
    session: MakeContext, on_machine: Callable[..., None], machine: tuple[str, str]
) -> None:
    context, codex = session(), Codex(CodexOptions(version="0.166.0"))
    on_machine(*machine)
    suffix, target = BUILDS[machine]
    assert codex.requirements() == (NpmPack("@openai/codex", f"0.166.0-{suffix}"),)
    assert f"/cache/@openai/codex/vendor/{target}/bin/codex" in codex.launch(context).argv


def test_a_machine_without_a_build_is_named(on_machine: Callable[..., None]) -> None:
    on_machine("linux", "riscv64")
    with pytest.raises(HarnessError, match="there is no Codex CLI package for linux on riscv64"):
        Codex(CodexOptions()).requirements()


def turn_metadata(**fields: str) -> str:
    return json.dumps({"session_id": "a", "thread_id": "b", **fields}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"x-codex-turn-metadata": turn_metadata(request_kind="turn")}, "agent"),
        ({"x-codex-turn-metadata": turn_metadata(request_kind="compaction")}, "compaction"),
        ({"x-codex-turn-metadata": '{"request_kind": "compaction"}'}, "compaction"),
        ({"x-openai-subagent": "collab_spawn", "x-codex-parent-thread-id": "a"}, "subagent"),
        (
            {
                "x-openai-subagent": "collab_spawn",
                "x-codex-turn-metadata": turn_metadata(request_kind="compaction"),
            },
            "compaction",
        ),
        ({"x-openai-subagent": "compact"}, "compaction"),
        ({"x-openai-subagent": "review"}, "auxiliary"),
        ({"x-openai-subagent": "memory_consolidation"}, "auxiliary"),
        ({}, "agent"),
    ],
)
@pytest.mark.parametrize("has_tools", [True, False])
def test_what_a_call_is_for(headers: dict[str, str], kind: str, has_tools: bool) -> None:
    assert Codex(CodexOptions()).profile().kind_of(headers, tools=(Tool("exec_command"),) * has_tools) == kind


def test_threads_are_told_apart() -> None:
    profile = Codex(CodexOptions()).profile()
    main = {"session-id": "1", "thread-id": "1", "x-client-request-id": "7"}
    spawned = {
        "session-id": "1",
        "thread-id": "2",
        "x-codex-parent-thread-id": "1",
        "x-openai-subagent": "collab_spawn",
    }
    assert profile.attribution(main) == ("1", "1", "", "")
    assert profile.attribution(spawned) == ("1", "2", "1", "collab_spawn")


def test_the_registry_knows_it() -> None:
    made: Harness = make("harness", Spec(name="codex"))
    assert (made.name, made.version) == ("codex", "0.166.0")
    with pytest.raises(ConfigError, match="max_turns"):
        make("harness", Spec(name="codex", options={"max_turns": 3}))
