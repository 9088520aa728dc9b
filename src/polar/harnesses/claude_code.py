"""The `claude_code` harness: Claude Code in print mode, at its slot through the Messages API.

It gets the key from a command in its settings, so the key is in no environment where the model's tools would find
it. It reads the instruction from stdin.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, model_validator

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin, refuse_commands
from polar.harnesses.own_logs import ReplyTally, inner, tally_lines, total
from polar.harnesses.packaged import (
    MCP_START_MS,
    Api,
    HarnessOptions,
    McpServer,
    PackagedHarness,
    literal_dollars,
    reply_tokens,
)
from polar.harnesses.programs.native import fitting
from polar.types import ArgumentRewrite, CallProfile, HarnessUsage, HeaderRule, LastWordRule, Matching, Slot

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
"""All set to the slot's model, whichever name the harness or a sub-agent's description asks for."""
SETTINGS_FILE = ".claude/settings.json"
KEY_FILE = ".claude/polar-key"
PROMPT_FILE = ".claude/polar-append-system-prompt.md"
MCP_FILE = ".claude/polar-mcp.json"
LINE_ENDS = r"(?<![^\S\n])[^\S\n]+(?=\n|\Z)"
"""White space at the end of a line, including the carriage return of a Windows line. It matches only from the
start of a run of white space: trying each space of a long run would take quadratic time."""
MATCHING = Matching(
    # It adds `replace_all: false` to every edit without it.
    adds_defaults=True,
    # It converts "5000" to 5000, "true" to true and "[]" to a list, and sends the converted values back.
    coerces_arguments=True,
    argument_rewrites=(
        # Except in Markdown, where white space at the end of a line has a meaning.
        ArgumentRewrite("Write", "content", LINE_ENDS),
        ArgumentRewrite("Edit", "new_string", LINE_ENDS),
        # It drops a leading `cd` to the current folder; another may follow.
        ArgumentRewrite("Bash", "command", r"\A(?:cd [^&|;\n]+ && )+"),
        # An end of `find -exec` that is escaped twice.
        ArgumentRewrite("Bash", "command", r"(?<!\\)\\+;", r"\\;"),
    ),
)
"""How the pinned version changes calls of its tools."""


LOGS = (".claude/projects",)


class ClaudeCodeOptions(HarnessOptions):
    version: str = "2.1.325"
    bare: bool = False
    """Three tools and a short prompt; no hooks, skills, memory or sub-agents."""
    max_turns: int | None = Field(default=None, gt=0)
    """More turns end the harness with exit code 1."""
    max_tokens: int | None = Field(default=None, gt=0)
    """The most tokens of one reply; None: a quarter of the window, at most 32k."""
    append_system_prompt: str | None = Field(default=None, min_length=1)
    context_files: bool = False
    """Whether CLAUDE.md is read. It is searched for from the workspace up to the root of the disk, so in the
    `local` runtime the node's own files would get into the prompt."""

    @model_validator(mode="after")
    def _bare_has_no_skills(self) -> ClaudeCodeOptions:
        if self.bare and self.skills:
            raise ValueError("with bare the model has no tool that loads skills: leave out bare or skills")
        return self


class ClaudeCode(PackagedHarness[ClaudeCodeOptions]):
    Options: type[BaseModel] = ClaudeCodeOptions
    name = "claude_code"
    apis: tuple[Api, ...] = ("anthropic-messages",)

    def _packs(self) -> tuple[NpmPack, ...]:
        return (NpmPack(fitting(CLAUDE_PACKAGES, "Claude Code"), self.version),)

    def _installed_program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return (str(installed[fitting(CLAUDE_PACKAGES, "Claude Code")] / "claude"),)

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        return tally_lines(logs, f"{LOGS[0]}/**/*.jsonl", _note)

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Claude Code")
        home_files = {
            SETTINGS_FILE: json.dumps(self._settings(context.home)),
            KEY_FILE: context.slot.key,
            INSTRUCTION_FILE: context.instruction,
            **self._skill_files(".claude/skills"),
        }
        if self._options.append_system_prompt is not None:
            home_files[PROMPT_FILE] = self._options.append_system_prompt
        if self._options.mcp_servers:
            home_files[MCP_FILE] = json.dumps({"mcpServers": self._mcp_settings(_server)})
        argv = reading_stdin((*self.program(context.installed), *self._flags(context.home)), context)
        return Launch(argv, self._env(context.slot), home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        return CallProfile(
            kind_rules=(
                # A request for a summary has the tools, system prompt and headers of any turn.
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
            # Otherwise its web fetch tool first asks the publisher whether a host is safe.
            "skipWebFetchPreflight": True,
        }
        if self._options.skills:
            # Its own skills would use up a smaller share, and the others would appear only as names.
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
            # After a broken stream, a second request without streaming could run a tool twice.
            "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # It would put a line before the system prompt that differs by prompt, so no sessions share a prefix.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "DISABLE_AUTOUPDATER": "1",
            # Without it, root may not skip permissions.
            "IS_SANDBOX": "1",
        }
        if self._options.mcp_servers:
            env["MCP_TIMEOUT"] = str(MCP_START_MS)
        return env if self._options.context_files else {**env, "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1"}


def _note(tally: ReplyTally, record: dict[str, Any]) -> None:
    message = inner(record, "message")
    if record.get("type") == "assistant":
        usage = inner(message, "usage")
        prompt = total(usage, "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        tally.add(message.get("id"), prompt, total(usage, "output_tokens"))


def _server(server: McpServer) -> dict[str, Any]:
    """`alwaysLoad`: the first request waits for the tools and offers them. Without it the model only sees their
    names and has to search for the rest."""
    kind, value = ("stdio", literal_dollars) if server.command is not None else ("http", _in_header)
    return {"type": kind, **server.settings(text=literal_dollars, value=value), "alwaysLoad": True}


def _in_header(text: str) -> str:
    """Claude Code expands variables in headers twice."""
    return literal_dollars(literal_dollars(text))
