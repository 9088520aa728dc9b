"""The row's eval script as it runs: its parts write to files of their own, and it exits with the tests' exit code.

An eval script prints one log, in which a marker line begins the tests' output and another ends it. Tested code can
print markers, too. So the markers become redirections: what the tests print arrives in a file of its own, and the
node puts the log together. The exit code in that log comes from the script's process.
"""

from __future__ import annotations

import re
import shlex

import msgspec

from polar.evaluators.hardening.witness import Testimony

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
EXIT_CODE = ">>>>> Test Exit Code"
FORGEABLE = (START, END, EXIT_CODE)
"""Lines of a log that only the node writes."""
PYTEST = re.compile(r"\b(pytest|py\.test)\b")
RUN = ("bash", "-c", 'polar_script=$(cat "$1"); rm -f "$1"; shift; eval "$polar_script"', "bash")
"""Reads the whole script first: bash reads a file line by line while it runs, so tested code could go on with
lines of its own."""
NOTE_MISSING = (
    "command_not_found_handle() {{ {{ set +x; }} 2>/dev/null; "
    "printf '%s\\n' \"$1\" >>{folder}/not_found; printf '%s: command not found\\n' \"$1\" >&2; return 127; }}"
)
"""Bash calls it, in a process of its own, with the name of a command that is not in PATH."""


def check_markers(script: str) -> str:
    """Raises ValueError unless each marker is on exactly one line, the start first."""
    _marked(script.splitlines())
    return script


def _marked(lines: list[str]) -> tuple[int, int]:
    starts = [number for number, line in enumerate(lines) if START in line]
    ends = [number for number, line in enumerate(lines) if END in line]
    if len(starts) != 1 or len(ends) != 1 or starts[0] >= ends[0]:
        raise ValueError(f"eval_script needs one line with {START!r}, and after it one with {END!r}")
    return starts[0], ends[0]


def test_command(script: str) -> str:
    """The lines between the markers."""
    lines = script.splitlines()
    start, end = _marked(lines)
    return "\n".join(lines[start + 1 : end])


def uses_pytest(script: str) -> bool:
    """Whether the test command names it."""
    return bool(PYTEST.search(test_command(script)))


def runnable(script: str, parts: str) -> str:
    """The script with its output in the files setup, tests and rest of the folder `parts`."""
    lines = script.splitlines()
    start, end = _marked(lines)
    folder = shlex.quote(parts)
    lines[end] = f"polar_exit_code=$?; exec >>{folder}/rest 2>&1"
    lines[start] = f"{NOTE_MISSING.format(folder=folder)}; exec >>{folder}/tests 2>&1"
    return "\n".join((f"exec >>{folder}/setup 2>&1", *lines, 'exit "$polar_exit_code"\n'))


class EvalLog(msgspec.Struct, frozen=True):
    """What a run of the script printed."""

    setup: str
    tests: str | None
    """None: it did not come to the start marker."""
    rest: str | None
    """None: it did not come to the end marker."""
    exit_code: int
    memory_kills: int = 0
    """Processes that the kernel killed at the task's own memory limit."""
    not_found: tuple[str, ...] = ()
    """Commands that the script's shell did not find in PATH, from the start marker on."""

    @property
    def whole(self) -> str:
        return "\n".join((self.setup, self.graded, self.rest or ""))

    @property
    def graded(self) -> str:
        """The tests' output between markers, as the official grading reads it. What ran before and after stays
        outside: code of the patch may run there, too, such as its setup.py."""
        tests = _without_markers(self.tests or "")
        started = f"{START}\n{tests}\n" if self.tests is not None else ""
        return started + (f"{END}\n{EXIT_CODE}: {self.exit_code}\n" if self.rest is not None else "")

    @property
    def printed(self) -> list[str]:
        """Lines of the tests' output, without bash's trace."""
        return [line for line in (self.tests or "").splitlines() if line.strip() and not line.startswith("+")]

    @property
    def forged(self) -> tuple[str, ...]:
        """Markers that something other than the node wrote."""
        printed = "\n".join((self.setup, self.tests or "", self.rest or ""))
        return tuple(marker for marker in FORGEABLE if marker in printed)


def log_of(seen: Testimony) -> EvalLog:
    parts = seen.parts
    ended = seen.finished
    parts_seen = (parts.get("setup", ""), parts.get("tests"), parts.get("rest"))
    not_found = tuple(parts.get("not_found", "").splitlines())
    return EvalLog(*parts_seen, ended.exit_code, ended.memory_kills, not_found)


def _without_markers(text: str) -> str:
    for marker in FORGEABLE:
        text = text.replace(marker, marker.replace(">", "|"))
    return text
