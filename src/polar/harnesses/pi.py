"""The `pi` harness: pi-coding-agent in print mode, at its slot through any of four APIs.

pi reads its settings from `~/.pi/agent`: provider and key from `models.json`, the rest from `settings.json`. The
key is on no command line and in no environment, so that none of the model's tools prints it by accident.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.errors import HarnessError
from polar.harnesses.base import HarnessContext, Launch
from polar.harnesses.instruction import INSTRUCTION_FILE, fits_an_argument, reading_stdin
from polar.harnesses.own_logs import ReplyTally, inner, tally_lines, total
from polar.harnesses.packaged import Api, HarnessOptions, McpServer, NodejsHarness
from polar.types import CallProfile, HarnessUsage, Matching, Slot

PROVIDER = "polar"
AGENT_FOLDER = ".pi/agent"
VERSION_SEGMENTS: dict[Api, str] = {"anthropic-messages": "", "google-generative-ai": "/v1beta"}
"""Where it is not the usual `/v1`."""
CONTEXT_MARGIN_TOKENS = 4096
"""pi keeps this margin free in the window: of 8k, only single tokens would be left from half-way on. So the window
in its settings is larger by the margin; the gateway enforces the true limit."""
JS_SPACE = (
    "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What JavaScript's `trim` removes."""
LOGS = (f"{AGENT_FOLDER}/sessions",)


class PiOptions(HarnessOptions):
    version: str = "1.5.0"
    api: Api = "openai-completions"
    tools: tuple[str, ...] | None = None
    """Which of pi's own tools the model sees; None: pi's default (read, bash, edit, write). Empty: no tools. The
    tools of MCP servers are always available."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Replaces pi's own."""
    append_system_prompt: str | None = Field(default=None, min_length=1)
    max_tokens: int = Field(default=1024, gt=0)
    """The most tokens of one reply. A reply that is cut off there ends pi with exit code 1."""
    compaction: bool = True
    """Whether pi summarizes old turns when less than a quarter of the window, or 16k, is left."""
    context_files: bool = False
    """Whether pi reads AGENTS.md and CLAUDE.md. It searches for them from the workspace up to the root of the
    disk, so in the `local` runtime the node's own files would get into the prompt."""


class Pi(NodejsHarness[PiOptions]):
    Options: type[BaseModel] = PiOptions
    name = "pi"
    package = "@earendil-works/pi-coding-agent"
    entry = "dist/bundle/cli.js"

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        return tally_lines(logs, f"{LOGS[0]}/**/*.jsonl", _note)

    def launch(self, context: HarnessContext) -> Launch:
        agent_files = {
            "models.json": json.dumps(models_of(context.slot, self._options)),
            "settings.json": json.dumps(self._settings(context.slot)),
        }
        if self._options.mcp_servers:
            _refuse_mcp_command(context.instruction)
            agent_files["mcp.json"] = json.dumps({"mcpServers": self._mcp_settings(_server)})
        command = (*self.program(context.installed), *self._flags(context, agent_files))
        home_files = {f"{AGENT_FOLDER}/{name}": text for name, text in agent_files.items()}
        home_files |= self._skill_files(f"{AGENT_FOLDER}/skills")
        env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
        env |= self._compile_cache(context.installed)
        if _can_be_a_message(context.instruction):
            return Launch((*command, "--", context.instruction), env, home_files, logs=LOGS)
        home_files[INSTRUCTION_FILE] = context.instruction
        return Launch(_reading_stdin(command, context), env, home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        """Requests for summaries have no tools; without tools in the options, neither have the agent's."""
        return CallProfile(
            kind_without_tools="agent" if self._has_no_tools() else "compaction",
            # It converts a list of edits that the model wrote as a string to a list.
            matching=Matching(coerces_arguments=True),
        )

    def _flags(self, context: HarnessContext, agent_files: dict[str, str]) -> list[str]:
        """Puts prompts into files: they may be longer than an argument or look like a path."""
        options = self._options
        flags = ["-p", "--provider", PROVIDER, "--model", context.slot.model, "--offline"]
        # Its built-in extensions would run an instruction such as "/mcp ..." as a command.
        flags.append("--no-extensions")
        if options.mcp_servers:
            flags += ["--extension", "builtin:mcp"]
        if not options.context_files:
            flags.append("--no-context-files")
        if self._has_no_tools():
            flags.append("--no-tools")
        elif options.tools is not None:
            flags += ["--tools", ",".join((*options.tools, *(["mcp__*"] if options.mcp_servers else [])))]
        prompts = {"system-prompt": options.system_prompt, "append-system-prompt": options.append_system_prompt}
        for name, text in prompts.items():
            if text is not None:
                agent_files[f"polar-{name}.md"] = text
                flags += [f"--{name}", f"{context.home}/{AGENT_FOLDER}/polar-{name}.md"]
        return [*flags, *options.extra_args]

    def _has_no_tools(self) -> bool:
        return self._options.tools == () and not self._options.mcp_servers

    def _settings(self, slot: Slot) -> dict[str, Any]:
        return {
            "httpIdleTimeoutMs": 0,  # a reply may wait long for the engine
            "defaultProjectTrust": "never",
            "enableInstallTelemetry": False,
            "cacheWarming": "off",
            "quietStartup": True,
            "compaction": {
                "enabled": self._options.compaction,
                # pi's defaults are for 128k windows; in 16k they mean "always" and "nothing to summarize".
                "reserveTokens": min(16384, slot.context_tokens // 4) + CONTEXT_MARGIN_TOKENS,
                "keepRecentTokens": min(20000, slot.context_tokens // 4),
            },
        }


def _note(tally: ReplyTally, record: dict[str, Any]) -> None:
    message = inner(record, "message")
    if message.get("role") == "assistant":
        usage = inner(message, "usage")
        prompt = total(usage, "input", "cacheRead", "cacheWrite")
        tally.add(message.get("responseId"), prompt, total(usage, "output"))


def models_of(slot: Slot, options: PiOptions) -> dict[str, Any]:
    model = {
        "id": slot.model,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": slot.context_tokens + CONTEXT_MARGIN_TOKENS,
        "maxTokens": options.max_tokens,
    }
    provider = {
        "baseUrl": slot.base_url + VERSION_SEGMENTS.get(options.api, "/v1"),
        "api": options.api,
        "apiKey": _literal(slot.key),
        "models": [model],
    }
    return {"providers": {PROVIDER: provider}}


def _literal(value: str) -> str:
    """pi expands `$NAME` and runs a command after a leading `!`; a `$` before either makes it literal."""
    escaped = value.replace("$", "$$")
    return f"${escaped}" if escaped.startswith("!") else escaped


def _server(server: McpServer) -> dict[str, Any]:
    """`direct`: the tools are in the prompt and the first request waits for them. Otherwise the model would have
    to call them from a script."""
    return {**server.settings(value=_literal), "exposure": "direct"}


def _refuse_mcp_command(instruction: str) -> None:
    if re.match(r"/mcp(\s|$)", instruction):
        raise HarnessError("with MCP servers pi runs '/mcp' as a command of its own; begin with another word")


def _can_be_a_message(instruction: str) -> bool:
    """After `--` pi takes a message literally, even with a leading dash, but a leading `@` still names a file."""
    return fits_an_argument(instruction) and not instruction.startswith("@")


def _reading_stdin(program: tuple[str, ...], context: HarnessContext) -> tuple[str, ...]:
    """pi trims what it reads and appends the first message without a gap. So the white space at the end, which it
    would trim, is passed as the message. White space at the start is lost."""
    body = context.instruction.rstrip(JS_SPACE)
    end = context.instruction[len(body) :]
    return reading_stdin((*program, "--", end) if end else program, context)
