"""The `codex` harness: Codex CLI in exec mode, at its slot through the Responses API.

Codex reads its settings and the key from `~/.codex/config.toml`, and its instruction from stdin, unchanged. Do not
use a model name that Codex knows: it has special prompts and tools for those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin
from polar.harnesses.own_logs import ReplyTally, inner, tally_lines, total
from polar.harnesses.packaged import MCP_START_MS, Api, HarnessOptions, McpServer, PackagedHarness
from polar.harnesses.programs.native import fitting
from polar.toml.text import toml_table
from polar.types import CallProfile, HarnessUsage, HeaderRule, Slot

CODEX_PACKAGE = "@openai/codex"
PROVIDER = "polar"
BUILDS = {
    ("linux", "x86_64"): ("linux-x64", "x86_64-unknown-linux-musl"),
    ("linux", "aarch64"): ("linux-arm64", "aarch64-unknown-linux-musl"),
    ("darwin", "x86_64"): ("darwin-x64", "x86_64-apple-darwin"),
    ("darwin", "arm64"): ("darwin-arm64", "aarch64-apple-darwin"),
}
"""The suffix of the version with the programs for a machine, and their folder."""
IDLE_TIMEOUT_MS = 3_600_000
"""A reply may wait long for the engine."""
LOGS = (".codex/sessions",)


class CodexOptions(HarnessOptions):
    version: str = "0.166.0"
    append_system_prompt: str | None = Field(default=None, min_length=1)
    """Follows Codex's own prompt as a developer message."""
    context_files: bool = False
    """Whether Codex reads AGENTS.md."""
    extra_args: tuple[str, ...] = ()
    """Follow `codex exec`; `-c name=value` changes any setting."""


class Codex(PackagedHarness[CodexOptions]):
    Options: type[BaseModel] = CodexOptions
    name = "codex"
    apis: tuple[Api, ...] = ("openai-responses",)

    def _packs(self) -> tuple[NpmPack, ...]:
        build, _ = fitting(BUILDS, "Codex CLI")
        return (NpmPack(CODEX_PACKAGE, f"{self.version}-{build}"),)

    def _installed_program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        _, target = fitting(BUILDS, "Codex CLI")
        return (str(installed[CODEX_PACKAGE] / "vendor" / target / "bin/codex"),)

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        return tally_lines(logs, f"{LOGS[0]}/**/*.jsonl", _note)

    def launch(self, context: HarnessContext) -> Launch:
        command = (
            *self.program(context.installed),
            *("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"),
            *self._options.extra_args,
            "-",
        )
        home_files = {
            ".codex/config.toml": toml_table(self._settings(context.slot)),
            INSTRUCTION_FILE: context.instruction,
            **self._skill_files(".codex/skills"),
        }
        return Launch(reading_stdin(command, context), home_files=home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        return CallProfile(
            kind_rules=(
                HeaderRule("x-codex-turn-metadata", "compaction", r'"request_kind"\s*:\s*"compaction"'),
                HeaderRule("x-openai-subagent", "compaction", "^compact$"),
                HeaderRule("x-openai-subagent", "subagent", "^collab_spawn$"),
                # Reviews, approvals and memory upkeep are not part of the task.
                HeaderRule("x-openai-subagent", "auxiliary"),
            ),
            attribution_headers=("session-id", "thread-id", "x-codex-parent-thread-id", "x-openai-subagent"),
        )

    def _settings(self, slot: Slot) -> dict[str, Any]:
        provider = {
            "name": PROVIDER,
            "base_url": f"{slot.base_url}/v1",
            "wire_api": "responses",
            "experimental_bearer_token": slot.key,
            "stream_idle_timeout_ms": IDLE_TIMEOUT_MS,
        }
        settings: dict[str, Any] = {
            "model": slot.model,
            "model_provider": PROVIDER,
            "model_context_window": slot.context_tokens,
            # By default it fills nine tenths of the window, which leaves a small one no room for a summary.
            "model_auto_compact_token_limit": slot.context_tokens - min(16384, slot.context_tokens // 4),
            "check_for_update_on_startup": False,
            "model_providers": {PROVIDER: provider},
            "analytics": {"enabled": False},
            # Plugins would be downloaded; and without its gateway Codex should end instead of waiting.
            "features": {"plugins": False, "unbounded_connection_retries": False},
        }
        if not self._options.context_files:
            settings["project_doc_max_bytes"] = 0
        if self._options.append_system_prompt is not None:
            settings["developer_instructions"] = self._options.append_system_prompt
        if self._options.mcp_servers:
            settings["mcp_servers"] = self._mcp_settings(_server)
        return settings


def _note(tally: ReplyTally, record: dict[str, Any]) -> None:
    if record.get("type") == "token_usage_record":
        payload = inner(record, "payload")
        usage = inner(payload, "usage")
        tally.add(payload.get("response_id"), total(usage, "input_tokens"), total(usage, "output_tokens"))


def _server(server: McpServer) -> dict[str, Any]:
    """`required`: Codex exits with 1 if the server does not start, instead of going on without its tools."""
    settings = server.settings(headers="http_headers")
    return {**settings, "required": True, "startup_timeout_sec": MCP_START_MS // 1000}
