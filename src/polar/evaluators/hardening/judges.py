"""Whether the Python processes that judge the work ran to their own end, not to one that the tested code chose.

Code under test runs in the same process as the script that judges it. `os._exit(0)`, `sys.exit(0)` or a program
that replaces the process would end the script before it has judged, with a good exit code. No check from within a
process is sound; this one sees the ways that cost one line.
"""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

import msgspec

LAST_LINE = """
if __name__ == "__main__":
    getattr(__import__("sys"), "_polar_reached_end", bool)()
"""
"""Appended to the evaluator's own Python files."""
RUNNERS = ("pytest", "py.test", "unittest")


class PythonProcess(msgspec.Struct, frozen=True):
    """What one Python process noted about itself."""

    pid: str
    is_first: bool
    """No other Python process started it."""
    main: str
    """The script's path, `-c` or `-m`."""
    words: tuple[str, ...]
    """The whole command line; empty before Python 3.10."""
    events: tuple[tuple[str, ...], ...] = ()

    def has(self, event: str) -> bool:
        return any(each[0] == event for each in self.events)

    @property
    def module(self) -> str:
        """Of `-m`; empty: another kind."""
        after = self.words[self.words.index("-m") + 1 :] if "-m" in self.words else ()
        return after[0] if after else ""

    @property
    def shown(self) -> str:
        return " ".join(self.words or (self.main,))[:200]


def with_last_line(text: str) -> str:
    """A Python file of the task's that also notes that it ran to its end."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    return text + LAST_LINE


class Judges(msgspec.Struct, frozen=True):
    """Which Python processes of a command judge the work: those have to end in order."""

    workspace: str
    """Its path without links, as processes inside see it."""
    scripts: dict[str, str] = {}
    """The task's own Python files, with their last line: path in the workspace, or an absolute one elsewhere, to
    text."""
    work: frozenset[str] = frozenset()
    """Paths that the agent changed."""

    def disorder(self, processes: tuple[PythonProcess, ...]) -> list[str]:
        """What is wrong with how they ended."""
        found: list[str] = []
        for number, process in enumerate(processes):
            again = any(later.pid == process.pid for later in processes[number + 1 :])
            if process.has("exec") and again:  # Python became another Python
                continue
            if problem := self._problem(process):
                found.append(f"tampering: `{process.shown}` {problem}")
        return found

    def _problem(self, process: PythonProcess) -> str:
        script = self._inner(process.main)
        if script in self.work:
            return ""  # how the work itself ends is its own affair
        if not self._is_judge(process, script):
            return "was ended by os._exit" if process.is_first and process.has("hard_exit") else ""
        if not process.has("ended"):
            return "did not end in order: the tested code ended or replaced its process"
        last = next((each for each in reversed(process.events) if each[0] in ("exit", "reached", "exception")), ())
        if last[:1] == ("exit",) and self._is_of_work(last[1:]) and not self._may_catch(process, script):
            return "did not run to its end: the tested code called sys.exit"
        if not last and script in self.scripts and "SystemExit" not in self.scripts[script]:
            return "did not run to its end: the tested code raised SystemExit"
        return ""

    def _is_judge(self, process: PythonProcess, script: str | None) -> bool:
        """Any script of the task's, pytest or unittest, and code in the command itself. Not a helper that one of
        them started and may kill."""
        is_runner = PurePosixPath(process.main).name in RUNNERS or process.module in RUNNERS
        return script in self.scripts or is_runner or (process.main == "-c" and process.is_first)

    def _may_catch(self, process: PythonProcess, script: str | None) -> bool:
        """Code after `-c` notes no last line, so an exit that it caught looks like one that ended it."""
        return script not in self.scripts and "except" in process.shown

    def _inner(self, path: str) -> str | None:
        """A path of the workspace, or of a script that is elsewhere; None: neither."""
        if path in self.scripts:
            return path
        absolute = PurePosixPath(path)
        return str(absolute.relative_to(self.workspace)) if absolute.is_relative_to(self.workspace) else None

    def _is_of_work(self, files: tuple[str, ...]) -> bool:
        """Whether the innermost code in the workspace is the agent's."""
        return next((inner for path in files if (inner := self._inner(path)) is not None), None) in self.work
