"""The `gemini_cli` harness: Gemini CLI without a terminal, at its slot through the Google API.

The key has to be a variable; a setting hides it from the model's tools. The instruction comes from stdin.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin, refuse_commands
from polar.harnesses.own_logs import ReplyTally, inner, tally_lines, total
from polar.harnesses.packaged import Api, HarnessOptions, McpServer, NodejsHarness, literal_dollars
from polar.types import CallProfile, HarnessUsage, ToolRule

SYSTEM_PROMPT_FILE = ".gemini/polar-system-prompt.md"
LOGS = (".gemini/tmp",)


class GeminiCliOptions(HarnessOptions):
    version: str = "0.61.0"
    max_turns: int | None = Field(default=None, gt=0)
    """More turns end the harness with exit code 53."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Replaces Gemini CLI's own, which cannot be appended to."""


class GeminiCli(NodejsHarness[GeminiCliOptions]):
    Options: type[BaseModel] = GeminiCliOptions
    name = "gemini_cli"
    package = "@google/gemini-cli"
    entry = "bundle/gemini.js"
    apis: tuple[Api, ...] = ("google-generative-ai",)

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        return tally_lines(logs, f"{LOGS[0]}/**/chats/**/*.jsonl", _note)

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Gemini CLI")
        command = (
            *self.program(context.installed),
            *("-m", context.slot.model, "--yolo", "--skip-trust"),
            *self._options.extra_args,
        )
        env = {"GOOGLE_GEMINI_BASE_URL": context.slot.base_url, "GEMINI_API_KEY": context.slot.key}
        env |= self._compile_cache(context.installed)
        home_files = {
            ".gemini/settings.json": json.dumps(self._settings()),
            INSTRUCTION_FILE: context.instruction,
            **self._skill_files(".gemini/skills"),
        }
        if self._options.system_prompt is not None:
            home_files[SYSTEM_PROMPT_FILE] = self._options.system_prompt
            env["GEMINI_SYSTEM_MD"] = f"{context.home}/{SYSTEM_PROMPT_FILE}"
        return Launch(reading_stdin(command, context), env, home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        """Its requests do not identify threads. Sub-agents have a tool to finish that the main agent lacks."""
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
            # Above the workspace are files of the node: "." is in every folder, so the search ends in the first.
            "context": {"memoryBoundaryMarkers": ["."]},
        }
        if self._options.max_turns is not None:
            settings["model"] = {"maxSessionTurns": self._options.max_turns}
        if self._options.mcp_servers:
            settings["mcpServers"] = self._mcp_settings(_server)
        return settings


def _note(tally: ReplyTally, record: dict[str, Any]) -> None:
    if record.get("type") == "gemini":
        tokens = inner(record, "tokens")
        tally.add(record.get("id"), total(tokens, "input"), total(tokens, "output", "thoughts"))


def _server(server: McpServer) -> dict[str, Any]:
    return {**server.settings("httpUrl", text=literal_dollars, value=_in_value), "trust": True}


def _in_value(text: str) -> str:
    """Gemini CLI expands variables here a second time, unless there is a backslash."""
    return literal_dollars(text.replace("$", "\\$"))
