"""The `claude_code` harness: Claude Code in print mode, at its slot through the Messages API.

It asks a command of its settings for the key, so the key stands in no environment, where the tools the model calls
would find it. The instruction comes by stdin.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator

from polar.harnesses.apis import Api
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin, refuse_commands
from polar.harnesses.options import HarnessOptions, McpServer
from polar.harnesses.programs.machine import fitting
from polar.harnesses.skills import skill_files
from polar.harnesses.window import reply_tokens
from polar.types import ArgumentRewrite, CallProfile, HeaderRule, LastWordRule, Matching, Slot

CLAUDE_PACKAGES = {
    ("linux", "x86_64"): "@anthropic-ai/claude-code-linux-x64",
    ("linux", "aarch64"): "@anthropic-ai/claude-code-linux-arm64",
    ("darwin", "x86_64"): "@anthropic-ai/claude-code-darwin-x64",
    ("darwin", "arm64"): "@anthropic-ai/claude-code-darwin-arm64",
}
MODEL_VARIABLES = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_FABLE_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
"""Whatever name the harness or a sub-agent's description asks for, it is the slot's model."""
SETTINGS_FILE = ".claude/settings.json"
KEY_FILE = ".claude/polar-key"
PROMPT_FILE = ".claude/polar-append-system-prompt.md"
MCP_FILE = ".claude/polar-mcp.json"
DOLLAR = "${POLAR_UNSET:-$}"
"""In the settings of servers: what stands there if there is no such variable."""
MCP_START_MS = 60_000
"""What a server of tools has to be ready."""
LINE_ENDS = r"(?<![^\S\n])[^\S\n]+(?=\n|\Z)"
"""White space at the end of a line, the carriage return of a line from Windows with it. It begins only where white
space does: tried again from each space of a long run, it would take the square of the run's length."""
MATCHING = Matching(
    # `replace_all: false` comes with every edit that does not say so.
    adds_defaults=True,
    # It calls its tools with "5000" as 5000, "true" as true and "[]" as a list, and says so afterwards.
    coerces_arguments=True,
    argument_rewrites=(
        # Except in Markdown, where the end of a line has a meaning.
        ArgumentRewrite("Write", "content", LINE_ENDS),
        ArgumentRewrite("Edit", "new_string", LINE_ENDS),
        # A command that first goes where the shell is anyway; one such beginning is cut, and another may follow.
        ArgumentRewrite("Bash", "command", r"\A(?:cd [^&|;\n]+ && )+"),
        # An end of `find -exec` that is escaped once too often.
        ArgumentRewrite("Bash", "command", r"(?<!\\)\\+;", r"\\;"),
    ),
)
"""What it does to calls of its tools, seen in the pinned version."""


class ClaudeCodeOptions(HarnessOptions):
    version: str = "2.1.325"
    bare: bool = False
    """Three tools and a short prompt, without hooks, skills, memory and sub-agents."""
    max_turns: int | None = Field(default=None, gt=0)
    """More turns end the harness with exit code 1."""
    max_tokens: int | None = Field(default=None, gt=0)
    """What is asked for at most in one reply; none: a quarter of the window, at most 32k."""
    append_system_prompt: str | None = Field(default=None, min_length=1)
    context_files: bool = False
    """Whether CLAUDE.md is read. It is looked for from the workspace up to the root of the disk, so a runtime that
    contains nothing would mix the node's own into the prompt."""

    @model_validator(mode="after")
    def _bare_has_no_skills(self) -> ClaudeCodeOptions:
        if self.bare and self.skills:
            raise ValueError("with bare the model has no tool that loads skills: leave out bare or skills")
        return self


class ClaudeCode:
    Options: type[BaseModel] = ClaudeCodeOptions
    name = "claude_code"
    apis: tuple[Api, ...] = ("anthropic-messages",)

    def __init__(self, options: ClaudeCodeOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        if self._options.program is not None:
            return ()
        return (NpmPack(fitting(CLAUDE_PACKAGES, "Claude Code"), self.version),)

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        if self._options.program is not None:
            return self._options.program
        return (str(installed[fitting(CLAUDE_PACKAGES, "Claude Code")] / "claude"),)

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Claude Code")
        home_files = {
            SETTINGS_FILE: json.dumps(self._settings(context.home)),
            KEY_FILE: context.slot.key,
            INSTRUCTION_FILE: context.instruction,
            **skill_files(".claude/skills", self._options.skills),
        }
        if self._options.append_system_prompt is not None:
            home_files[PROMPT_FILE] = self._options.append_system_prompt
        if self._options.mcp_servers:
            servers = {name: _server(server) for name, server in self._options.mcp_servers.items()}
            home_files[MCP_FILE] = json.dumps({"mcpServers": servers})
        argv = reading_stdin((*self.program(context.installed), *self._flags(context.home)), context)
        return Launch(argv, self._env(context.slot), home_files, logs=(".claude/projects",))

    def profile(self) -> CallProfile:
        return CallProfile(
            kind_rules=(
                # A summary is asked for with the tools, the system prompt and the headers of any turn.
                LastWordRule(r"\ACRITICAL: Respond with TEXT ONLY\.[\s\S]*<summary>", "compaction"),
                HeaderRule("x-claude-code-agent-id", "subagent"),
            ),
            attribution_headers=(
                "x-claude-code-session-id",
                "x-claude-code-agent-id",
                "x-claude-code-parent-agent-id",
            ),
            matching=MATCHING,
        )

    def _settings(self, home: str) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "apiKeyHelper": f"cat {shlex.quote(f'{home}/{KEY_FILE}')}",
            # Its tool that fetches pages asks its maker first whether a host is safe.
            "skipWebFetchPreflight": True,
        }
        if self._options.skills:
            # Of a smaller share its own skills leave nothing, and the others stand there as bare names.
            settings["skillListingBudgetFraction"] = 1
        return settings

    def _flags(self, home: str) -> list[str]:
        options = self._options
        flags = ["-p", "--dangerously-skip-permissions", "--settings", f"{home}/{SETTINGS_FILE}"]
        if options.bare:
            flags.append("--bare")
        if options.max_turns is not None:
            flags += ["--max-turns", str(options.max_turns)]
        if options.append_system_prompt is not None:
            flags += ["--append-system-prompt-file", f"{home}/{PROMPT_FILE}"]
        if options.mcp_servers:
            flags += ["--mcp-config", f"{home}/{MCP_FILE}", "--strict-mcp-config"]
        return [*flags, *options.extra_args]

    def _env(self, slot: Slot) -> dict[str, str]:
        env = {
            "ANTHROPIC_BASE_URL": slot.base_url,
            **dict.fromkeys(MODEL_VARIABLES, slot.model),
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(slot.context_tokens),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(reply_tokens(slot, self._options.max_tokens)),
            # After a broken stream a second, whole reply could run a tool twice.
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # A line in front of the system prompt that differs by prompt, so no two sessions share a prefix.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "DISABLE_AUTOUPDATER": "1",
            # Root may skip permissions only where this says so.
            "IS_SANDBOX": "1",
        }
        if self._options.mcp_servers:
            env["MCP_TIMEOUT"] = str(MCP_START_MS)
        return env if self._options.context_files else {**env, "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1"}


def _server(server: McpServer) -> dict[str, Any]:
    """`alwaysLoad`: the first request waits for the tools and offers them. Without it the model would only be told
    their names, and would have to search for the rest."""
    if server.command is not None:
        program, *arguments = map(_plain, server.command)
        env = {name: _plain(text) for name, text in server.env.items()}
        return {"type": "stdio", "command": program, "args": arguments, "env": env, "alwaysLoad": True}
    # Variables in headers are looked for twice.
    headers = {name: _plain(_plain(text)) for name, text in server.headers.items()}
    return {"type": "http", "url": _plain(server.url or ""), "headers": headers, "alwaysLoad": True}


def _plain(text: str) -> str:
    """Claude Code puts the values of variables into these settings; a dollar can only be had as such a value."""
    return text.replace("$", DOLLAR)
