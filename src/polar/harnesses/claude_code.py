"""The `claude_code` harness: Claude Code in print mode, at its slot through the Messages API.

It asks a command of its settings for the key, so the key stands in no environment, where the tools the model calls
would find it. The instruction comes by stdin.
"""

from __future__ import annotations

import json
import shlex

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin, refuse_commands
from polar.harnesses.machine import fitting
from polar.harnesses.window import reply_tokens
from polar.types import ArgumentRewrite, CallProfile, HeaderRule, LastWordRule, Matching, Slot, Strict

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
LINE_ENDS = r"[^\S\n]+(?=\n|\Z)"
"""White space at the end of a line, the carriage return of a line from Windows with it."""
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
        ArgumentRewrite("Bash", "command", r"\\+;", r"\\;"),
    ),
)
"""What it does to calls of its tools, seen in the pinned version."""


class ClaudeCodeOptions(Strict):
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
    extra_args: tuple[str, ...] = ()


class ClaudeCode:
    Options: type[BaseModel] = ClaudeCodeOptions
    name = "claude_code"

    def __init__(self, options: ClaudeCodeOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        return (NpmPack(fitting(CLAUDE_PACKAGES, "Claude Code"), self.version),)

    def launch(self, context: HarnessContext) -> Launch:
        refuse_commands(context.instruction, "Claude Code")
        program = context.installed[fitting(CLAUDE_PACKAGES, "Claude Code")] / "claude"
        settings = {"apiKeyHelper": f"cat {shlex.quote(f'{context.home}/{KEY_FILE}')}"}
        home_files = {
            SETTINGS_FILE: json.dumps(settings, indent=1),
            KEY_FILE: context.slot.key,
            INSTRUCTION_FILE: context.instruction,
        }
        if self._options.append_system_prompt is not None:
            home_files[PROMPT_FILE] = self._options.append_system_prompt
        argv = reading_stdin((str(program), *self._flags(context.home)), context)
        return Launch(argv, self._env(context.slot), home_files)

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

    def _flags(self, home: str) -> list[str]:
        options = self._options
        flags = ["-p", "--dangerously-skip-permissions", "--settings", f"{home}/{SETTINGS_FILE}"]
        if options.bare:
            flags.append("--bare")
        if options.max_turns is not None:
            flags += ["--max-turns", str(options.max_turns)]
        if options.append_system_prompt is not None:
            flags += ["--append-system-prompt-file", f"{home}/{PROMPT_FILE}"]
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
        return env if self._options.context_files else {**env, "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1"}
