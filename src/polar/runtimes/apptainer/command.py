"""The script that starts a command in an Apptainer instance, run by the image's own shell.

It sets the environment, which would otherwise be on a command line that every user of the node can read, and
signals when the program is found. So a missing program or a failure of Apptainer differs from a program that ran
and ended with the same code. Script and signal pass by file descriptors, because no file inside can be trusted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Self

from polar.errors import RuntimeFailure
from polar.runtimes.base import Finished
from polar.runtimes.host.descriptors import is_readable, memory_file

NO_PROGRAM = 127
BY_APPTAINER = ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "INSTANCE", "NAME", "NO_EVAL")
"""Variables that Apptainer adds to every environment, under two prefixes; some hold paths of the node."""
FOR_PROMPTS = ("PROMPT_COMMAND", "PS1", "USER_PATH")


class StartScript:
    """The script and the signal pipe of one command."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._script = memory_file(script_for(env).encode())
        self._read_end, self._write_end = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._script, self._read_end, self._write_end):
            os.close(fd)

    @property
    def fds(self) -> tuple[int, ...]:
        return self._script, self._write_end

    def starting(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return ("/bin/sh", f"/proc/self/fd/{self._script}", f"/proc/self/fd/{self._write_end}", *argv)

    def has_started(self) -> bool:
        """Whether the program was found."""
        return is_readable(self._read_end)


def script_for(env: Mapping[str, str]) -> str:
    """Sets `env` over the image's environment, writes the signal to its first argument and executes the rest. It
    uses only shell built-ins, because PATH is the command's own by then."""
    if wrong := [name for name in env if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]:
        raise RuntimeFailure(f"{wrong[0]!r} is not a valid variable name in the apptainer runtime")
    added = (f"{prefix}_{name}" for prefix in ("APPTAINER", "SINGULARITY") for name in BY_APPTAINER)
    return "\n".join(
        [
            "sign=$1; shift",
            f"unset {' '.join((*FOR_PROMPTS, *added))}",
            *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
            'case "$1" in */*) [ -x "$1" ] && [ ! -d "$1" ];; *) command -v "$1" >/dev/null;; esac '
            f"|| exit {NO_PROGRAM}",
            'echo >"$sign"; unset sign',
            'exec "$@"\n',
        ]
    )


def why_not(program: str, finished: Finished) -> str:
    """Why a command did not start."""
    if finished.exit_code == NO_PROGRAM:
        return f"cannot start {program!r}: there is no such program"
    return f"cannot start {program!r}: {last_line(finished)}"


def last_line(finished: Finished) -> str:
    return finished.stderr_tail.strip().rpartition("\n")[2] or f"exit code {finished.exit_code}"
