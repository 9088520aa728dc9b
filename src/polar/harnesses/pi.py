"""The `pi` harness: pi-coding-agent in print mode, at its slot through any of four APIs.

pi is told all it needs by `~/.pi/agent`: provider and key by `models.json`, manners by `settings.json`. The key
stands on no command line and in no environment, so that no tool the model calls prints it by accident.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.errors import HarnessError
from polar.harnesses.apis import ALL_APIS, Api
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, fits_an_argument, reading_stdin
from polar.harnesses.options import HarnessOptions, McpServer
from polar.harnesses.programs.node_runtime import compiled_code, node_pack, node_program
from polar.harnesses.skills import skill_files
from polar.types import CallProfile, Matching, Slot

PI_PACKAGE = "@earendil-works/pi-coding-agent"
PROVIDER = "polar"
AGENT_FOLDER = ".pi/agent"
VERSION_SEGMENTS: dict[Api, str] = {"anthropic-messages": "", "google-generative-ai": "/v1beta"}
"""Where pi does not want the usual one."""
CONTEXT_MARGIN_TOKENS = 4096
"""pi asks for no more tokens than fit the window less this margin: with 8k, single tokens from half-way on. The
window it is told is larger by the margin; the gateway knows the true one and holds the true limit."""
JS_SPACE = (
    "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What JavaScript's `trim` takes away."""
LOGS = (f"{AGENT_FOLDER}/sessions",)


class PiOptions(HarnessOptions):
    version: str = "1.5.0"
    api: Api = "openai-completions"
    tools: tuple[str, ...] | None = None
    """Those of pi's own tools that the model sees; none: pi's choice (read, bash, edit, write). Empty: no tools.
    The tools of MCP servers are always there."""
    system_prompt: str | None = Field(default=None, min_length=1)
    """Stands in place of pi's own."""
    append_system_prompt: str | None = Field(default=None, min_length=1)
    max_tokens: int = Field(default=1024, gt=0)
    """What pi asks for at most in one reply. A reply cut off there ends pi with exit code 1."""
    compaction: bool = True
    """Whether pi summarises old turns when less than a quarter of the window, or 16k, is left."""
    context_files: bool = False
    """Whether pi reads AGENTS.md and CLAUDE.md. It looks for them from the workspace up to the root of the disk,
    so a runtime that contains nothing would mix the node's own into the prompt."""


class Pi:
    Options: type[BaseModel] = PiOptions
    name = "pi"
    apis = ALL_APIS

    def __init__(self, options: PiOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        if self._options.program is not None:
            return ()
        return (node_pack(), NpmPack(PI_PACKAGE, self.version))

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        if self._options.program is not None:
            return self._options.program
        return (node_program(installed), str(installed[PI_PACKAGE] / "dist/bundle/cli.js"))

    def launch(self, context: HarnessContext) -> Launch:
        agent_files = {
            "models.json": json.dumps(models_of(context.slot, self._options)),
            "settings.json": json.dumps(self._settings(context.slot)),
        }
        if self._options.mcp_servers:
            _refuse_mcp_command(context.instruction)
            servers = {name: _server(server) for name, server in self._options.mcp_servers.items()}
            agent_files["mcp.json"] = json.dumps({"mcpServers": servers})
        command = (*self.program(context.installed), *self._flags(context, agent_files))
        home_files = {f"{AGENT_FOLDER}/{name}": text for name, text in agent_files.items()}
        home_files |= skill_files(f"{AGENT_FOLDER}/skills", self._options.skills)
        env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
        env |= compiled_code(context.installed, PI_PACKAGE)
        if _can_be_a_message(context.instruction):
            return Launch((*command, "--", context.instruction), env, home_files, logs=LOGS)
        home_files[INSTRUCTION_FILE] = context.instruction
        return Launch(_told_by_stdin(command, context), env, home_files, logs=LOGS)

    def profile(self) -> CallProfile:
        """Summaries of a long history have no tools; without any of its own, neither has the agent."""
        return CallProfile(
            kind_without_tools="agent" if self._has_no_tools() else "compaction",
            # A list of edits that the model wrote as a text comes back as a list.
            matching=Matching(coerces_arguments=True),
        )

    def _flags(self, context: HarnessContext, agent_files: dict[str, str]) -> list[str]:
        """Adds files for prompts, which may be longer than an argument or look like a path."""
        options = self._options
        flags = ["-p", "--provider", PROVIDER, "--model", context.slot.model, "--offline"]
        # Its built-in extensions would take an instruction such as "/mcp ..." for a command of theirs.
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
            "httpIdleTimeoutMs": 0,  # a reply may wait long for its engine
            "defaultProjectTrust": "never",
            "enableInstallTelemetry": False,
            "cacheWarming": "off",
            "quietStartup": True,
            "compaction": {
                "enabled": self._options.compaction,
                # pi's own sizes suit 128k windows; within 16k they would mean "always" and "nothing to summarise".
                "reserveTokens": min(16384, slot.context_tokens // 4) + CONTEXT_MARGIN_TOKENS,
                "keepRecentTokens": min(20000, slot.context_tokens // 4),
            },
        }


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
    """pi reads `$NAME` as a variable and a leading `!` as a command to run; behind a `$` both are plain."""
    escaped = value.replace("$", "$$")
    return f"${escaped}" if escaped.startswith("!") else escaped


def _server(server: McpServer) -> dict[str, Any]:
    """`direct`: the tools stand in the prompt, where a script of the model's would have to call them. The first
    request waits for them."""
    if server.command is not None:
        program, *arguments = server.command
        kind: dict[str, Any] = {"command": program, "args": arguments, "env": _literals(server.env)}
    else:
        kind = {"url": server.url, "headers": _literals(server.headers)}
    return {**kind, "exposure": "direct"}


def _literals(values: dict[str, str]) -> dict[str, str]:
    return {name: _literal(value) for name, value in values.items()}


def _refuse_mcp_command(instruction: str) -> None:
    if re.match(r"/mcp(\s|$)", instruction):
        raise HarnessError("with MCP servers pi takes '/mcp' for a command of its own; begin with another word")


def _can_be_a_message(instruction: str) -> bool:
    """Behind `--` pi takes a message as it is, a leading dash included, but `@` still names a file."""
    return fits_an_argument(instruction) and not instruction.startswith("@")


def _told_by_stdin(program: tuple[str, ...], context: HarnessContext) -> tuple[str, ...]:
    """pi trims what it reads and joins the first message to its end without a gap: so the space at the end, which
    trimming takes, is given as the message. Space at the beginning is lost."""
    body = context.instruction.rstrip(JS_SPACE)
    end = context.instruction[len(body) :]
    return reading_stdin((*program, "--", end) if end else program, context)
