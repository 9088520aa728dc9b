"""The `shell` harness: any command as the agent.

It finds its task in `POLAR_INSTRUCTION`, in the file named by `POLAR_INSTRUCTION_FILE`, or in place of
`{instruction}` in its command; its model at `OPENAI_BASE_URL` with `OPENAI_API_KEY`, or in the variables of other
SDKs. If the runtime intercepts hosts, the variables of SDKs name no base URL: a program finds its model where it
expects it.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from pydantic import BaseModel, Field, model_validator

from polar.errors import HarnessError
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.instruction import INSTRUCTION_FILE, fits_an_argument
from polar.types import CallProfile, Slot, Strict

PLACEHOLDER = "{instruction}"

# A crash in the middle of a pipe must not look like success, which plain sh cannot ensure. Whether there is a bash
# is known only where the command runs.
RUN_WITH_PIPEFAIL = """\
if command -v bash >/dev/null 2>&1; then exec bash -o pipefail -c "$1"; fi
if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi
eval "$1"
"""


class ShellOptions(Strict):
    command: str | None = Field(default=None, min_length=1)
    """Run by `bash -o pipefail -c`, or by `/bin/sh -c` without a bash (with pipefail if supported).
    `{instruction}` becomes the instruction as one quoted word; other braces stay as they are."""
    argv: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Run without a shell; `{instruction}` becomes the instruction, unquoted."""
    version: str = "unversioned"
    """The version of the command, recorded in results."""
    attribution_headers: tuple[str, ...] = ()
    """Headers that distinguish the command's own threads. Two requests with the same body are a call and its retry
    unless one of these differs."""

    @model_validator(mode="after")
    def _one_of_both(self) -> ShellOptions:
        if (self.command is None) == (self.argv is None):
            raise ValueError("give either command or argv")
        if self.command is not None and _has_quoted_placeholder(self.command):
            raise ValueError(f"{PLACEHOLDER} is inside quotes; write it without, because it is quoted already")
        return self


class Shell:
    Options: type[BaseModel] = ShellOptions
    name = "shell"

    def __init__(self, options: ShellOptions) -> None:
        self._options = options
        self.version = options.version

    def requirements(self) -> tuple[NpmPack, ...]:
        return ()

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        """A shell command has no single program that could print its version."""
        return self._options.argv[:1] if self._options.argv is not None else ()

    def launch(self, context: HarnessContext) -> Launch:
        instruction = context.instruction
        env = {
            **_slot_variables(context.slot),
            **({} if context.intercepted else _base_urls(context.slot)),
            "POLAR_SESSION": context.session_id,
            "POLAR_INSTRUCTION_FILE": f"{context.home}/{INSTRUCTION_FILE}",
        }
        if fits_an_argument(instruction):
            env["POLAR_INSTRUCTION"] = instruction
        return Launch(self._argv(instruction), env, home_files={INSTRUCTION_FILE: instruction})

    def profile(self) -> CallProfile:
        return CallProfile(attribution_headers=tuple(name.lower() for name in self._options.attribution_headers))

    def _argv(self, instruction: str) -> tuple[str, ...]:
        command, argv = self._options.command, self._options.argv
        if command is not None:
            script = command.replace(PLACEHOLDER, shlex.quote(instruction))
            filled = ("/bin/sh", "-c", RUN_WITH_PIPEFAIL, "sh", script)
        else:
            filled = tuple(word.replace(PLACEHOLDER, instruction) for word in argv or ())
        if not all(map(fits_an_argument, filled)):
            raise HarnessError(
                f"the instruction is too long for a command line, or contains a NUL: let the command read"
                f" $POLAR_INSTRUCTION_FILE instead of {PLACEHOLDER}"
            )
        return filled


def _slot_variables(slot: Slot) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": slot.key,
        "OPENAI_MODEL": slot.model,
        "ANTHROPIC_API_KEY": slot.key,
        "GEMINI_API_KEY": slot.key,
        "POLAR_BASE_URL": slot.base_url,
        "POLAR_API_KEY": slot.key,
        "POLAR_MODEL": slot.model,
        "POLAR_CONTEXT_TOKENS": str(slot.context_tokens),
    }


def _base_urls(slot: Slot) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": f"{slot.base_url}/v1",
        "ANTHROPIC_BASE_URL": slot.base_url,
        "GOOGLE_GEMINI_BASE_URL": slot.base_url,
    }


def _has_quoted_placeholder(command: str) -> bool:
    """Whether a placeholder is inside quotes, where a quoted word would be split."""
    quote, position = "", 0
    while position < len(command):
        letter = command[position]
        if quote and command.startswith(PLACEHOLDER, position):
            return True
        if letter == "\\" and quote != "'":
            position += 1
        elif letter == quote:
            quote = ""
        elif letter in "'\"" and not quote:
            quote = letter
        position += 1
    return False
