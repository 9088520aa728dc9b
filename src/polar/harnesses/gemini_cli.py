"""The `gemini_cli` harness: Gemini CLI without a terminal, at its slot through the Google API.

The key has to be a variable; a setting keeps it from the tools the model calls. The instruction comes by stdin.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin, refuse_commands
from polar.harnesses.node_runtime import node_pack, node_program
from polar.types import CallProfile, Strict, ToolRule

GEMINI_PACKAGE = "@google/gemini-cli"
SYSTEM_PROMPT_FILE = ".gemini/polar-system-prompt.md"


class GeminiCliOptions(Strict):
    version: str = "0.61.0"
    max_turns: int | None = Field(default=None, gt=0)
    """More turns end the harness with exit code 53."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Stands in place of Gemini CLI's own; it has no way to append to that."""
    extra_args: tuple[str, ...] = ()


class GeminiCli:
    Options: type[BaseModel] = GeminiCliOptions
    name = "gemini_cli"

    def __init__(self, options: GeminiCliOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        return (node_pack(), NpmPack(GEMINI_PACKAGE, self.version))

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Gemini CLI")
        program = (
            node_program(context.installed),
            str(context.installed[GEMINI_PACKAGE] / "bundle/gemini.js"),
            *("-m", context.slot.model, "--yolo", "--skip-trust"),
            *self._options.extra_args,
        )
        env = {"GOOGLE_GEMINI_BASE_URL": context.slot.base_url, "GEMINI_API_KEY": context.slot.key}
        home_files = {
            ".gemini/settings.json": json.dumps(self._settings(), indent=1),
            INSTRUCTION_FILE: context.instruction,
        }
        if self._options.system_prompt is not None:
            home_files[SYSTEM_PROMPT_FILE] = self._options.system_prompt
            env["GEMINI_SYSTEM_MD"] = f"{context.home}/{SYSTEM_PROMPT_FILE}"
        return Launch(reading_stdin(program, context), env, home_files)

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
        return settings
