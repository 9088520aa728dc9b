"""What presets must hold, each with the defect of published systems that it rules out."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from polar import registry
from polar.harnesses.base import Harness, HarnessContext, Launch
from polar.types import Slot, Spec

HARNESSES = ("claude_code", "codex", "gemini_cli", "opencode", "pi", "qwen_code")
SERVERS_OF_TOOLS = (
    ("claude_code", ".claude/polar-mcp.json", "mcpServers"),
    ("codex", ".codex/config.toml", "mcp_servers"),
    ("gemini_cli", ".gemini/settings.json", "mcpServers"),
    ("qwen_code", ".qwen/polar-mcp.json", "mcpServers"),
)
"""The file and the table of it that hold them; the other two spell a server in their own way."""
SECRET = "sk-secret-1234"
URL = "http://127.0.0.1:9"


class Cache(dict[str, Path]):
    def __missing__(self, package: str) -> Path:
        return Path("/cache") / package


def launched(name: str, **options: Any) -> Launch:
    harness: Harness = registry.make("harness", Spec(name=name, options=options))
    slot = Slot(base_url=URL, key=SECRET, model="polar", context_tokens=65536)
    return harness.launch(HarnessContext("Do it", slot, "s-1", "/s/work", "/s/home", Cache()))


@pytest.mark.parametrize("name", HARNESSES)
def test_no_secret_stands_on_a_command_line(name: str) -> None:
    """31: keys on command lines, for every process of the machine to read."""
    made = launched(name)
    assert not any(SECRET in word for word in made.argv)
    assert SECRET in "".join([*made.env.values(), *made.home_files.values()]), "it has it all the same"


@pytest.mark.parametrize("name", HARNESSES)
def test_every_harness_gets_the_address_of_its_model(name: str) -> None:
    """33: one preset named no base URL, and nothing was captured."""
    made = launched(name)
    assert URL in "".join([*made.env.values(), *made.home_files.values(), *made.argv])


def test_settings_in_toml_stand_in_the_table_they_belong_to() -> None:
    """34: the base URL came after the tables and landed in the last of them."""
    settings = tomllib.loads(launched("codex").home_files[".codex/config.toml"])
    provider = settings["model_providers"][settings["model_provider"]]
    assert provider["base_url"] == f"{URL}/v1" and "base_url" not in settings


@pytest.mark.parametrize(("name", "file", "table"), SERVERS_OF_TOOLS)
def test_servers_of_tools_stand_by_their_names(name: str, file: str, table: str) -> None:
    """34: the settings of tool servers were a list, which the harness does not read."""
    made = launched(name, mcp_servers={"colours": {"command": ["run", "it"]}})
    read = tomllib.loads if file.endswith(".toml") else json.loads
    server = read(made.home_files[file])[table]["colours"]
    assert (server["command"], server["args"]) == ("run", ["it"])


@pytest.mark.parametrize("name", [*HARNESSES, "shell"])
def test_the_instruction_reaches_the_harness(name: str) -> None:
    """34: the preset for commands of one's own ignored the instruction."""
    made = launched(name, **({"command": "run"} if name == "shell" else {}))
    assert any("Do it" in text for text in [*made.argv, *made.env.values(), *made.home_files.values()])
