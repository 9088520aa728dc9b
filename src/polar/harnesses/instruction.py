"""How an instruction reaches a harness: as stdin from a file of the home, or as an argument if it fits."""

from __future__ import annotations

import re

from polar.errors import HarnessError
from polar.harnesses.base import HarnessContext

INSTRUCTION_FILE = "instruction.txt"
ARGUMENT_LIMIT_BYTES = 120_000
"""Linux accepts arguments and variables of up to 128 KiB."""
COMMAND_PATTERN = re.compile(r"\s*/[A-Za-z][\w:.-]*(\s|$)")


def fits_an_argument(text: str) -> bool:
    return len(text.encode()) <= ARGUMENT_LIMIT_BYTES and "\0" not in text


def reading_stdin(program: tuple[str, ...], context: HarnessContext) -> tuple[str, ...]:
    """The program with the instruction's file as its stdin; the launch must include that file."""
    return ("/bin/sh", "-c", 'exec "$@" <"$0"', f"{context.home}/{INSTRUCTION_FILE}", *program)


def refuse_commands(instruction: str, harness: str) -> None:
    """For harnesses that run such an instruction as a command of their own and may succeed without a model call.
    Which names are commands depends on version and workspace, so any word after a slash counts, but not a path."""
    if found := COMMAND_PATTERN.match(instruction):
        raise HarnessError(
            f"{harness} would run {found[0].strip()!r}, the start of the instruction, as a command of its own;"
            " begin with another word"
        )
