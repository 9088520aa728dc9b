"""The `codex` harness: Codex CLI in exec mode, at its slot through the Responses API.

Codex reads all it needs from `~/.codex/config.toml`, the key included, and its instruction from stdin, which it
takes as it is. The model's name should be none that Codex knows: for those it has prompts and tools of their own.
"""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic import BaseModel, Field

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, reading_stdin
from polar.harnesses.machine import fitting
from polar.types import CallProfile, HeaderRule, Slot, Strict

CODEX_PACKAGE = "@openai/codex"
PROVIDER = "polar"
BUILDS = {
    ("linux", "x86_64"): ("linux-x64", "x86_64-unknown-linux-musl"),
    ("linux", "aarch64"): ("linux-arm64", "aarch64-unknown-linux-musl"),
    ("darwin", "x86_64"): ("darwin-x64", "x86_64-apple-darwin"),
    ("darwin", "arm64"): ("darwin-arm64", "aarch64-apple-darwin"),
}
"""The end of the version that holds the programs for a machine, and the folder they stand in."""
IDLE_TIMEOUT_MS = 3_600_000
"""A reply may wait long for its engine."""


class CodexOptions(Strict):
    version: str = "0.166.0"
    append_system_prompt: str | None = Field(default=None, min_length=1)
    """Stands behind Codex's own as a developer message."""
    context_files: bool = False
    """Whether Codex reads AGENTS.md."""
    extra_args: tuple[str, ...] = ()
    """Stand behind `codex exec`; `-c name=value` changes any setting."""


class Codex:
    Options: type[BaseModel] = CodexOptions
    name = "codex"

    def __init__(self, options: CodexOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        build, _ = fitting(BUILDS, "Codex CLI")
        return (NpmPack(CODEX_PACKAGE, f"{self.version}-{build}"),)

    def launch(self, context: HarnessContext) -> Launch:
        _, target = fitting(BUILDS, "Codex CLI")
        program = (
            str(context.installed[CODEX_PACKAGE] / "vendor" / target / "bin/codex"),
            *("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"),
            *self._options.extra_args,
            "-",
        )
        home_files = {
            ".codex/config.toml": toml_of(self._settings(context.slot)),
            INSTRUCTION_FILE: context.instruction,
        }
        return Launch(reading_stdin(program, context), home_files=home_files)

    def profile(self) -> CallProfile:
        return CallProfile(
            kind_rules=(
                HeaderRule("x-codex-turn-metadata", "compaction", r'"request_kind"\s*:\s*"compaction"'),
                HeaderRule("x-openai-subagent", "compaction", "^compact$"),
                HeaderRule("x-openai-subagent", "subagent", "^collab_spawn$"),
                # Reviews, approvals and the keeping of memories are no part of the task.
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
            # By itself it goes on to nine tenths of the window, which leaves a small one no room for a summary.
            "model_auto_compact_token_limit": slot.context_tokens - min(16384, slot.context_tokens // 4),
            "check_for_update_on_startup": False,
            "model_providers": {PROVIDER: provider},
            "analytics": {"enabled": False},
            # Plugins are cloned from outside; and with a gateway that is gone Codex is to end, not to wait.
            "features": {"plugins": False, "unbounded_connection_retries": False},
        }
        if not self._options.context_files:
            settings["project_doc_max_bytes"] = 0
        if self._options.append_system_prompt is not None:
            settings["developer_instructions"] = self._options.append_system_prompt
        return settings


def toml_of(settings: dict[str, Any]) -> str:
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in settings.items())


def _toml_value(value: Any) -> str:
    """JSON's strings, numbers and truth values are TOML's too, but for the one letter TOML wants escaped."""
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value).items()
        return "{ " + ", ".join(f"{name} = {_toml_value(inner)}" for name, inner in entries) + " }"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
