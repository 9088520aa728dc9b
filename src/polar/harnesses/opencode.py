"""The `opencode` harness: OpenCode's `run`, at its slot through any of four APIs.

Provider and key stand in `~/.config/opencode/opencode.json`. The instruction comes by stdin, which OpenCode takes
as it is; an argument it would put into quotes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.apis import ALL_APIS, Api
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin
from polar.harnesses.options import HarnessOptions, McpServer
from polar.harnesses.programs.machine import fitting
from polar.harnesses.programs.ripgrep import finding_ripgrep, ripgrep_pack
from polar.harnesses.skills import skill_files
from polar.harnesses.window import reply_tokens
from polar.types import CallProfile, HeaderRule, Matching, Slot, VolatileLine

OPENCODE_PACKAGES = {
    ("linux", "x86_64"): "opencode-linux-x64-baseline",
    ("linux", "aarch64"): "opencode-linux-arm64",
    ("darwin", "x86_64"): "opencode-darwin-x64-baseline",
    ("darwin", "arm64"): "opencode-darwin-arm64",
}
"""The baseline builds need no AVX2, which not every node of a fleet has."""
PROVIDER = "polar"
SDKS: dict[Api, str] = {
    "openai-completions": "@ai-sdk/openai-compatible",
    "openai-responses": "@ai-sdk/openai",
    "anthropic-messages": "@ai-sdk/anthropic",
    "google-generative-ai": "@ai-sdk/google",
}
"""Those packed into OpenCode; it would fetch any other while it runs."""
CONFIG_FOLDER = ".config/opencode"
PLUGIN_PACKAGE = "@opencode-ai/plugin"
PROMPT_FILE = f"{CONFIG_FOLDER}/polar-append-system-prompt.md"
DATA_FOLDER = ".local/share/opencode"
LOGS = tuple(f"{DATA_FOLDER}/{name}" for name in ("log", "opencode.db", "opencode.db-wal", "opencode.db-shm"))
MCP_START_MS = 60_000
"""What a server of tools has to be ready. OpenCode holds its first request back for it."""


class OpenCodeOptions(HarnessOptions):
    version: str = "1.18.33"
    api: Api = "openai-completions"
    max_tokens: int | None = Field(default=None, gt=0)
    """What is asked for at most in one reply; none: a quarter of the window, at most 32k."""
    append_system_prompt: str | None = Field(default=None, min_length=1)
    title_call: bool = False
    """Whether OpenCode asks the model for a title beside the first turn, a call without tools."""
    context_files: bool = False
    """Whether AGENTS.md, CLAUDE.md and the workspace's own opencode.json and skills are read."""


class OpenCode:
    Options: type[BaseModel] = OpenCodeOptions
    name = "opencode"
    apis = ALL_APIS

    def __init__(self, options: OpenCodeOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        if self._options.program is not None:
            return ()
        return (NpmPack(fitting(OPENCODE_PACKAGES, "OpenCode"), self.version), ripgrep_pack())

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        if self._options.program is not None:
            return self._options.program
        return (str(installed[fitting(OPENCODE_PACKAGES, "OpenCode")] / "bin/opencode"),)

    def launch(self, context: HarnessContext) -> Launch:
        options = self._options
        command = (
            *self.program(context.installed),
            *("run", "-m", f"{PROVIDER}/{context.slot.model}"),
            *(() if options.title_call else ("--title", context.session_id)),
            *options.extra_args,
        )
        home_files = {
            f"{CONFIG_FOLDER}/opencode.json": as_it_is(self._settings(context)),
            **looks_installed(self.version),
            **skill_files(f"{CONFIG_FOLDER}/skills", options.skills),
            INSTRUCTION_FILE: context.instruction,
        }
        if options.append_system_prompt is not None:
            home_files[PROMPT_FILE] = options.append_system_prompt
        if options.program is None:
            command = finding_ripgrep(command, context.installed)
        return Launch(reading_stdin(command, context), self._env(), home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        return CallProfile(
            # Summaries of a long history have no tools, and neither has a title, where one is asked for.
            kind_without_tools="auxiliary" if self._options.title_call else "compaction",
            kind_rules=(HeaderRule("x-parent-session-id", "subagent"),),
            attribution_headers=("x-session-id", "x-parent-session-id"),
            matching=Matching(
                # Its system prompt is written anew for each call and says what day it is.
                volatile_lines=(VolatileLine("system", r" *Today's date: \w{3} \w{3} \d\d \d{4}"),),
                # A call of `Bash` becomes one of `bash`. One that cannot be repaired becomes one of `invalid`,
                # which is another call: it matches nothing, and the request forks.
                lowers_tool_names=True,
            ),
        )

    def _env(self) -> dict[str, str]:
        env = {
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
        if self._options.context_files:
            return env
        return {
            **env,
            "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
            "OPENCODE_DISABLE_CLAUDE_CODE_PROMPT": "1",
            "OPENCODE_DISABLE_EXTERNAL_SKILLS": "1",
        }

    def _settings(self, context: HarnessContext) -> dict[str, Any]:
        options, slot = self._options, context.slot
        model = f"{PROVIDER}/{slot.model}"
        settings: dict[str, Any] = {
            "model": model,
            "small_model": model,
            "autoupdate": False,
            "share": "disabled",
            "snapshot": False,  # only for undoing by hand; it copies a git workspace at each step
            # What is not allowed is asked for, and refused where no one can answer: the run then ends.
            "permission": {"*": "allow"},
            "provider": {PROVIDER: self._provider(slot)},
        }
        if options.append_system_prompt is not None:
            settings["instructions"] = [f"{context.home}/{PROMPT_FILE}"]
        if options.mcp_servers:
            settings["mcp"] = {name: _server(server) for name, server in options.mcp_servers.items()}
        return settings

    def _provider(self, slot: Slot) -> dict[str, Any]:
        version = "v1beta" if self._options.api == "google-generative-ai" else "v1"
        limit = {"context": slot.context_tokens, "output": reply_tokens(slot, self._options.max_tokens)}
        return {
            "npm": SDKS[self._options.api],
            "options": {"baseURL": f"{slot.base_url}/{version}", "apiKey": slot.key},
            "models": {slot.model: {"tool_call": True, "limit": limit}},
        }


def looks_installed(version: str) -> dict[str, str]:
    """Else OpenCode would fetch a package for plugins into its folder, though there are none."""
    lock = {"packages": {"": {"dependencies": {PLUGIN_PACKAGE: version}}}}
    return {f"{CONFIG_FOLDER}/package-lock.json": json.dumps(lock), f"{CONFIG_FOLDER}/node_modules/.keep": ""}


def _server(server: McpServer) -> dict[str, Any]:
    if server.command is not None:
        kind: dict[str, Any] = {"type": "local", "command": server.command, "environment": server.env}
    else:
        kind = {"type": "remote", "url": server.url, "headers": server.headers, "oauth": False}
    return {**kind, "enabled": True, "timeout": MCP_START_MS}


def as_it_is(settings: dict[str, Any]) -> str:
    """JSON in whose texts OpenCode finds no `{env:NAME}` or `{file:PATH}` to put something in the place of: it
    looks for them before it reads the JSON."""
    return re.sub(r"\{(?=env:|file:)", r"\\u007b", json.dumps(settings))
