"""The `qwen_code` harness: Qwen Code without a terminal, at its slot through any of four APIs.

Base URL and key are in `~/.qwen/settings.json`, not in the environment of the model's tools.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch
from polar.harnesses.instruction import INSTRUCTION_FILE, fits_an_argument, reading_stdin, refuse_commands
from polar.harnesses.own_logs import ReplyTally, inner, tally_lines, total
from polar.harnesses.packaged import MCP_START_MS, Api, HarnessOptions, McpServer, NodejsHarness, reply_tokens
from polar.types import CallProfile, HarnessUsage, Slot, ToolRule

AUTH_TYPES: dict[Api, str] = {
    "openai-completions": "openai",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic",
    "google-generative-ai": "gemini",
}
VERSION_SEGMENTS: dict[Api, str] = {"openai-completions": "/v1", "openai-responses": "/v1"}
NO_CONTEXT_FILE = "polar-reads-no-context-file"
"""Qwen Code always looks for some file; this one does not exist."""
REPLY_TIMEOUT_MS = 3_600_000
"""A reply may wait long for the engine."""
MCP_FILE = ".qwen/polar-mcp.json"
"""A file of its own, because Qwen Code expands variables in its settings."""
ADDED_TO_STDIN = "\n\n"
"""Qwen Code appends these to what it reads from stdin."""
LOGS = (".qwen/projects",)


class QwenCodeOptions(HarnessOptions):
    version: str = "0.24.4"
    api: Api = "openai-completions"
    max_turns: int | None = Field(default=None, gt=0)
    """More turns end the harness with exit code 53."""
    max_tokens: int | None = Field(default=None, gt=0)
    """The most tokens of one reply; None: a quarter of the window, at most 32k."""
    append_system_prompt: str | None = Field(default=None, min_length=1, max_length=30_000)
    context_files: bool = False
    """Whether QWEN.md and AGENTS.md are read."""


class QwenCode(NodejsHarness[QwenCodeOptions]):
    Options: type[BaseModel] = QwenCodeOptions
    name = "qwen_code"
    package = "@qwen-code/qwen-code"
    entry = "cli-entry.js"

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        return tally_lines(logs, f"{LOGS[0]}/**/chats/**/*.jsonl", _note)

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Qwen Code")
        command = (*self.program(context.installed), *self._flags(context))
        env = {
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
            "QWEN_STREAM_IDLE_TIMEOUT_MS": str(REPLY_TIMEOUT_MS),
            "QWEN_STREAM_MAX_LIFETIME_MS": str(REPLY_TIMEOUT_MS),
            **self._compile_cache(context.installed),
        }
        if self._options.api == "anthropic-messages":
            env["ANTHROPIC_BASE_URL"] = context.slot.base_url  # for this API the settings are not enough
        home_files = {
            ".qwen/settings.json": json.dumps(self._settings(context.slot)),
            **self._skill_files(".qwen/skills"),
        }
        if self._options.mcp_servers:
            home_files[MCP_FILE] = json.dumps({"mcpServers": self._mcp_settings(_server)})
        if fits_an_argument(context.instruction):
            command = (*command, f"--prompt={context.instruction}")
        else:
            home_files[INSTRUCTION_FILE] = context.instruction.removesuffix(ADDED_TO_STDIN)
            command = reading_stdin(command, context)
        return Launch(command, env, home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        """Its requests do not identify threads. Only the main agent has goals, so sub-agents lack the tools for
        them. Requests for summaries have no tools."""
        return CallProfile(
            kind_without_tools="compaction", kind_rules=(ToolRule("get_goal", "subagent", offered=False),)
        )

    def _flags(self, context: HarnessContext) -> list[str]:
        options = self._options
        flags = ["--yolo", "--auth-type", AUTH_TYPES[options.api], "-m", context.slot.model]
        if options.mcp_servers:
            flags += ["--mcp-config", f"{context.home}/{MCP_FILE}"]
        if options.max_turns is not None:
            flags += ["--max-session-turns", str(options.max_turns)]
        if options.append_system_prompt is not None:
            flags.append(f"--append-system-prompt={options.append_system_prompt}")
        return [*flags, *options.extra_args]

    def _settings(self, slot: Slot) -> dict[str, Any]:
        base_url = slot.base_url + VERSION_SEGMENTS.get(self._options.api, "")
        auth_type = AUTH_TYPES[self._options.api]
        settings: dict[str, Any] = {
            "security": {"auth": {"selectedType": auth_type, "apiKey": slot.key, "baseUrl": base_url}},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "general": {"enableAutoUpdate": False, "preventSystemSleep": False},
            # After the answer these would call the model again, to take notes for the next session.
            "memory": {
                "enableManagedAutoMemory": False,
                "enableManagedAutoDream": False,
                "enableAutoSkill": False,
            },
            "model": {
                "name": slot.model,
                "generationConfig": {
                    "timeout": REPLY_TIMEOUT_MS,
                    "contextWindowSize": slot.context_tokens,
                    "samplingParams": {"max_tokens": reply_tokens(slot, self._options.max_tokens)},
                },
            },
        }
        if not self._options.context_files:
            settings["context"] = {"fileName": NO_CONTEXT_FILE}
        return settings


def _note(tally: ReplyTally, record: dict[str, Any]) -> None:
    """Its count of a reply's tokens has the reasoning in one API and not in another; the sum always has it."""
    event = inner(record, "systemPayload", "uiEvent")
    if event.get("event.name") == "qwen-code.api_response":
        prompt = total(event, "input_token_count")
        tally.add(event.get("response_id"), prompt, max(0, total(event, "total_token_count") - prompt))


def _server(server: McpServer) -> dict[str, Any]:
    """`alwaysLoadTools`: the tools are in the prompt; otherwise the model would have to search for them first."""
    own = {"trust": True, "alwaysLoadTools": True, "discoveryTimeoutMs": MCP_START_MS}
    return {**server.settings("httpUrl"), **own}
