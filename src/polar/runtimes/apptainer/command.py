"""What a command of an Apptainer instance begins with: a script of ours, run by the image's own shell.

It sets the environment, which would otherwise show in a command line that the whole node can read, and gives a
sign once the program is found. So a program that is missing and an Apptainer that failed are told from a program
that ran and ended with the same code. Script and sign pass by file descriptors: no file inside could be trusted.
"""

from __future__ import annotations

import os
import re
import select
import shlex
from collections.abc import Mapping
from typing import Self

from polar.errors import RuntimeFailure
from polar.runtimes.base import Finished

NO_PROGRAM = 127
BY_APPTAINER = ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "INSTANCE", "NAME", "NO_EVAL")
"""Variables that it adds to every environment, under two prefixes; some hold paths of the node."""
FOR_PROMPTS = ("PROMPT_COMMAND", "PS1", "USER_PATH")


class StartScript:
    """The descriptors of one command, to be passed on to it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        script = first_script(env).encode()
        self._script = os.memfd_create("begin")
        self._seen, self._sign = os.pipe()
        with open(self._script, "wb", closefd=False) as file:
            file.write(script)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._script, self._seen, self._sign):
            os.close(fd)

    @property
    def fds(self) -> tuple[int, ...]:
        return self._script, self._sign

    def of(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return ("/bin/sh", f"/proc/self/fd/{self._script}", f"/proc/self/fd/{self._sign}", *argv)

    def was_made(self) -> bool:
        """Whether the program was found."""
        poll = select.poll()
        poll.register(self._seen, select.POLLIN)
        return bool(poll.poll(0))


def first_script(env: Mapping[str, str]) -> str:
    """Sets `env` over what the image brings along, says so where its first argument is, and becomes the command in
    the others. Only what is built into a shell is used, since the PATH is the command's own by then."""
    if wrong := [name for name in env if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)]:
        raise RuntimeFailure(f"{wrong[0]!r} cannot be the name of a variable here")
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
    """Of a command that left no sign."""
    if finished.exit_code == NO_PROGRAM:
        return f"cannot start {program!r}: there is no such program"
    return f"cannot start {program!r}: {last_line(finished)}"


def last_line(finished: Finished) -> str:
    return finished.stderr_tail.strip().rpartition("\n")[2] or f"exit code {finished.exit_code}"
