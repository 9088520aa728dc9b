"""The `gemini_cli` harness: Gemini CLI without a terminal, at its slot through the Google API.

The key has to be a variable; a setting keeps it from the tools the model calls. The instruction comes by stdin.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.apis import Api
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin, refuse_commands
from polar.harnesses.options import HarnessOptions, McpServer
from polar.harnesses.programs.node_runtime import compiled_code, node_pack, node_program
from polar.harnesses.skills import skill_files
from polar.types import CallProfile, ToolRule

GEMINI_PACKAGE = "@google/gemini-cli"
SYSTEM_PROMPT_FILE = ".gemini/polar-system-prompt.md"
DOLLAR = "${POLAR_UNSET:-$}"
"""In settings: what stands there if there is no such variable."""


class GeminiCliOptions(HarnessOptions):
    version: str = "0.61.0"
    max_turns: int | None = Field(default=None, gt=0)
    """More turns end the harness with exit code 53."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Stands in place of Gemini CLI's own; it has no way to append to that."""


class GeminiCli:
    Options: type[BaseModel] = GeminiCliOptions
    name = "gemini_cli"
    apis: tuple[Api, ...] = ("google-generative-ai",)

    def __init__(self, options: GeminiCliOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        if self._options.program is not None:
            return ()
        return (node_pack(), NpmPack(GEMINI_PACKAGE, self.version))

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        if self._options.program is not None:
            return self._options.program
        return (node_program(installed), str(installed[GEMINI_PACKAGE] / "bundle/gemini.js"))

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Gemini CLI")
        command = (
            *self.program(context.installed),
            *("-m", context.slot.model, "--yolo", "--skip-trust"),
            *self._options.extra_args,
        )
        env = {"GOOGLE_GEMINI_BASE_URL": context.slot.base_url, "GEMINI_API_KEY": context.slot.key}
        env |= compiled_code(context.installed, GEMINI_PACKAGE)
        home_files = {
            ".gemini/settings.json": json.dumps(self._settings()),
            INSTRUCTION_FILE: context.instruction,
            **skill_files(".gemini/skills", self._options.skills),
        }
        if self._options.system_prompt is not None:
            home_files[SYSTEM_PROMPT_FILE] = self._options.system_prompt
            env["GEMINI_SYSTEM_MD"] = f"{context.home}/{SYSTEM_PROMPT_FILE}"
        return Launch(reading_stdin(command, context), env, home_files, logs=(".gemini/tmp",))

    def profile(self) -> CallProfile:
        """Its requests say nothing of threads. Sub-agents end with a tool that the main agent is not offered."""
        return CallProfile(kind_rules=(ToolRule("complete_task", "subagent"),))

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "security": {
                "auth": {"selectedType": "gemini-api-key"},
                "environmentVariableRedaction": {"enabled": True, "blocked": ["GEMINI_API_KEY"]},
            },
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            # Above the workspace lie files of the node: "." is in every folder, so the search ends in the first.
            "context": {"memoryBoundaryMarkers": ["."]},
        }
        if self._options.max_turns is not None:
            settings["model"] = {"maxSessionTurns": self._options.max_turns}
        if self._options.mcp_servers:
            settings["mcpServers"] = {name: _server(server) for name, server in self._options.mcp_servers.items()}
        return settings


def _server(server: McpServer) -> dict[str, Any]:
    if server.command is not None:
        program, *arguments = map(_plain, server.command)
        return {"command": program, "args": arguments, "env": _plain_values(server.env), "trust": True}
    return {"httpUrl": _plain(server.url or ""), "headers": _plain_values(server.headers), "trust": True}


def _plain(text: str) -> str:
    """Gemini CLI puts the values of variables into its settings; a dollar can only be had as such a value."""
    return text.replace("$", DOLLAR)


def _plain_values(texts: dict[str, str]) -> dict[str, str]:
    """Into these it does so a second time, and there a backslash keeps it from it."""
    return {name: text.replace("$", f"\\{DOLLAR}") for name, text in texts.items()}
