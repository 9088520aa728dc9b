"""The `opencode` harness: OpenCode's `run`, at its slot through any of four APIs.

Provider and key are in `~/.config/opencode/opencode.json`. The instruction comes from stdin, which OpenCode reads
unchanged; it would put an argument into quotes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin
from polar.harnesses.own_logs import ReplyTally, inner, query, total
from polar.harnesses.packaged import MCP_START_MS, Api, HarnessOptions, McpServer, PackagedHarness, reply_tokens
from polar.harnesses.programs.native import finding_ripgrep, fitting, ripgrep_pack
from polar.types import CallProfile, HarnessUsage, HeaderRule, Matching, Slot, VolatileLine

OPENCODE_PACKAGES = {
    ("linux", "x86_64"): "opencode-linux-x64-baseline",
    ("linux", "aarch64"): "opencode-linux-arm64",
    ("darwin", "x86_64"): "opencode-darwin-x64-baseline",
    ("darwin", "arm64"): "opencode-darwin-arm64",
}
"""The baseline builds need no AVX2, which not every machine has."""
PROVIDER = "polar"
SDKS: dict[Api, str] = {
    "openai-completions": "@ai-sdk/openai-compatible",
    "openai-responses": "@ai-sdk/openai",
    "anthropic-messages": "@ai-sdk/anthropic",
    "google-generative-ai": "@ai-sdk/google",
}
"""Those bundled with OpenCode; it would download others while it runs."""
CONFIG_FOLDER = ".config/opencode"
PLUGIN_PACKAGE = "@opencode-ai/plugin"
PROMPT_FILE = f"{CONFIG_FOLDER}/polar-append-system-prompt.md"
DATA_FOLDER = ".local/share/opencode"
LOGS = tuple(f"{DATA_FOLDER}/{name}" for name in ("log", "opencode.db", "opencode.db-wal", "opencode.db-shm"))


class OpenCodeOptions(HarnessOptions):
    version: str = "1.18.33"
    api: Api = "openai-completions"
    max_tokens: int | None = Field(default=None, gt=0)
    """The most tokens of one reply; None: a quarter of the window, at most 32k."""
    append_system_prompt: str | None = Field(default=None, min_length=1)
    title_call: bool = False
    """Whether OpenCode asks the model for a title with the first turn, in a call without tools."""
    context_files: bool = False
    """Whether AGENTS.md, CLAUDE.md and the workspace's own opencode.json and skills are read."""


class OpenCode(PackagedHarness[OpenCodeOptions]):
    Options: type[BaseModel] = OpenCodeOptions
    name = "opencode"

    def _packs(self) -> tuple[NpmPack, ...]:
        return (NpmPack(fitting(OPENCODE_PACKAGES, "OpenCode"), self.version), ripgrep_pack())

    def _installed_program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return (str(installed[fitting(OPENCODE_PACKAGES, "OpenCode")] / "bin/opencode"),)

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        database = logs / DATA_FOLDER / "opencode.db"
        if not database.is_file() or database.is_symlink():
            return None
        tally = ReplyTally()
        for reply_id, data in query(database, "SELECT id, data FROM message"):
            message: dict[str, Any] = json.loads(data)
            if message.get("role") == "assistant":
                tokens = inner(message, "tokens")
                prompt = total(tokens, "input") + total(inner(tokens, "cache"), "read", "write")
                tally.add(reply_id, prompt, total(tokens, "output", "reasoning"))
        return tally.usage()

    def launch(self, context: HarnessContext) -> Launch:
        options = self._options
        command = (
            *self.program(context.installed),
            *("run", "-m", f"{PROVIDER}/{context.slot.model}"),
            *(() if options.title_call else ("--title", context.session_id)),
            *options.extra_args,
        )
        home_files = {
            f"{CONFIG_FOLDER}/opencode.json": literal_json(self._settings(context)),
            **looks_installed(self.version),
            **self._skill_files(f"{CONFIG_FOLDER}/skills"),
            INSTRUCTION_FILE: context.instruction,
        }
        if options.append_system_prompt is not None:
            home_files[PROMPT_FILE] = options.append_system_prompt
        if options.program is None:
            command = finding_ripgrep(command, context.installed)
        return Launch(reading_stdin(command, context), self._env(), home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        return CallProfile(
            # Requests for summaries have no tools, and neither have requests for a title.
            kind_without_tools="auxiliary" if self._options.title_call else "compaction",
            kind_rules=(HeaderRule("x-parent-session-id", "subagent"),),
            attribution_headers=("x-session-id", "x-parent-session-id"),
            matching=Matching(
                # Its system prompt is made for each call and contains the date.
                volatile_lines=(VolatileLine("system", r" *Today's date: \w{3} \w{3} \d\d \d{4}"),),
                # It changes a call of `Bash` to `bash`. A call that it cannot repair becomes one of `invalid`,
                # which matches nothing, so the request forks.
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
            "snapshot": False,  # only for manual undo; it copies a git workspace at each step
            # It would ask for anything not allowed, be refused without a terminal, and end.
            "permission": {"*": "allow"},
            "provider": {PROVIDER: self._provider(slot)},
        }
        if options.append_system_prompt is not None:
            settings["instructions"] = [f"{context.home}/{PROMPT_FILE}"]
        if options.mcp_servers:
            settings["mcp"] = self._mcp_settings(_server)
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
    """Otherwise OpenCode would download a package for plugins, even if there are none."""
    lock = {"packages": {"": {"dependencies": {PLUGIN_PACKAGE: version}}}}
    return {f"{CONFIG_FOLDER}/package-lock.json": json.dumps(lock), f"{CONFIG_FOLDER}/node_modules/.keep": ""}


def _server(server: McpServer) -> dict[str, Any]:
    if server.command is not None:
        kind: dict[str, Any] = {"type": "local", "command": server.command, "environment": server.env}
    else:
        kind = {"type": "remote", "url": server.url, "headers": server.headers, "oauth": False}
    return {**kind, "enabled": True, "timeout": MCP_START_MS}


def literal_json(settings: dict[str, Any]) -> str:
    """JSON in which OpenCode expands no `{env:NAME}` or `{file:PATH}`: it does that before it parses the JSON."""
    return re.sub(r"\{(?=env:|file:)", r"\\u007b", json.dumps(settings))
