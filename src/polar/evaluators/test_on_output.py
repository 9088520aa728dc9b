"""Scores the workspace with a command: its exit code, a pattern in its output, or the outcomes of named tests.

The command runs in the session's runtime after the harness is dead. The files given here replace the agent's, so
that a test it edited is not the test that runs. If the agent's work keeps the command from ending, the reward is
0.0.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from typing import ClassVar, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from polar.errors import EvaluatorError, PolarError, WorkspaceUnusable
from polar.evaluators.base import Evidence
from polar.evaluators.pytest_report import Outcome, outcomes_of
from polar.runtimes.base import Command, Finished, Runtime
from polar.types import InnerPath, Score, Strict

NOT_FOUND = 127
"""The shell's exit code for a command that is not found."""

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*=")
SHELL_SIGNS = frozenset("$`(){};&|<>!")

MAKE_WAY = """chmod u+rwx . 2>/dev/null
find . ${HOME:+"$HOME"} ${TMPDIR:+"$TMPDIR"} -xdev -type p -exec rm -f {} + 2>/dev/null
for path do
    here=.
    while [ "$path" != "${path#*/}" ]; do
        here=$here/${path%%/*} path=${path#*/}
        if [ -L "$here" ] || { [ -e "$here" ] && [ ! -d "$here" ]; }; then rm -f "$here"; fi
        [ -L "$here" ] || chmod u+rwx "$here" 2>/dev/null
    done
    [ -L "$here/$path" ] || chmod -R u+rwx "$here/$path" 2>/dev/null
    rm -rf "$here/$path"
done
exit 0
"""
"""Makes room for the files in its arguments. The agent may have left a folder, a link or a pipe in their place, or
a folder that cannot be written to. It owns all of that, and this runs as the same user. All pipes are removed:
their writers are dead, and a reader would wait for ever."""

KEEP_OUTPUT = """out=$0 keep=$1; shift
if (: >"$out.whole") 2>/dev/null; then
    "$@" >"$out.whole"; code=$?
    tail -c "$keep" "$out.whole" >"$out"; cat "$out"; exit "$code"
fi
exec "$@"
"""
"""Runs its arguments and writes the end of their output to a file: a runtime returns only a few kilobytes, and a
test suite prints more. A file, because a pipe would wait for any server that the tests leave running. If the file
cannot be written, those few kilobytes are used."""

SHARE_OF_POSTRUN = 0.8
"""The command's share of `budgets.postrun_s`; the rest is for building traces."""


class OutputExpectations(Strict):
    command: str | tuple[str, ...] = Field(min_length=1)
    """A line for `sh -c`, or an argv. If it is not found, the evaluator fails, not the agent: if the agent has to
    make the program, test for it first (`test -x ./tool && ./tool`)."""
    env: dict[str, str] = Field(default={})
    files: dict[InnerPath, str] = Field(default={})
    """Written into the workspace before the command runs: relative path to text."""
    expect_exit: int | None = None
    """Default: 0; with `expect_tests`, any."""
    expect_pattern: str | None = None
    """A regular expression that must match in the standard output; `^` and `$` match at lines."""
    expect_tests: dict[str, Outcome] = Field(default={})
    """Test id, exactly as pytest prints it, to the required outcome."""
    parser: Literal["pytest"] = "pytest"
    """The program that prints the outcomes; pytest must run with `-rA`."""
    partial: bool = False
    """The reward is the share of `expect_tests` that have their outcome, instead of 1.0 for all and else 0.0."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of the command, beyond which it scores 0.0. None: four fifths of `budgets.postrun_s`."""
    max_output_bytes: int = Field(default=1_000_000, gt=0)
    """Only the end of the output, up to this size, is used."""

    @field_validator("expect_pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    @model_validator(mode="after")
    def _partial_needs_tests(self) -> OutputExpectations:
        if self.partial and not self.expect_tests:
            raise ValueError("partial needs expect_tests: the reward is the share of them that hold")
        return self

    @property
    def wanted_exit(self) -> int | None:
        return 0 if self.expect_exit is None and not self.expect_tests else self.expect_exit


class TestOnOutput:
    __test__: ClassVar[bool] = False
    """Keeps pytest from collecting the class as tests."""
    Options: type[BaseModel] = OutputExpectations

    def __init__(self, options: OutputExpectations) -> None:
        self._options = options

    async def evaluate(self, evidence: Evidence) -> Score:
        limit_s = self._options.timeout_s or SHARE_OF_POSTRUN * evidence.task.budgets.postrun_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                finished, output = await self._run(evidence.runtime)
        except TimeoutError:  # an OSError; another deadline's must pass through
            if not limit.expired():
                raise
            return Score(reward=0.0, reasons=(f"the evaluator's command did not end within {limit_s:g} s",))
        except WorkspaceUnusable:
            raise
        except (PolarError, OSError, ValueError) as error:
            raise EvaluatorError(f"the evaluator's command could not run: {error}") from error
        if finished.exit_code == NOT_FOUND and not await self._has_program(evidence.runtime):
            raise EvaluatorError(f"the evaluator's command was not found: {finished.stderr_tail[-500:].strip()}")
        return self._score(finished.exit_code, output)

    async def _run(self, runtime: Runtime) -> tuple[Finished, str]:
        await runtime.exec(Command(("sh", "-c", MAKE_WAY, "sh", *self._options.files), log_name="evaluator"))
        for path, text in self._options.files.items():
            await runtime.put(path, text.encode())
        output_path = f".polar-evaluator-{secrets.token_hex(8)}"  # a name that the agent cannot guess
        finished = await runtime.exec(
            Command(
                argv=("sh", "-c", KEEP_OUTPUT, output_path, str(self._options.max_output_bytes), *self._argv),
                env=self._options.env,
                log_name="evaluator",
            )
        )
        try:
            return finished, (await runtime.get(output_path)).decode(errors="replace")
        except FileNotFoundError:
            return finished, finished.stdout_tail

    async def _has_program(self, runtime: Runtime) -> bool:
        """Whether the command's program exists. Then code 127 came from something it ran, perhaps the agent's
        work, and is scored like any other code."""
        program = self._program
        if self._options.wanted_exit == NOT_FOUND or not program:
            return True
        look = Command(("sh", "-c", 'command -v -- "$1" >/dev/null', "sh", program), env=self._options.env)
        return (await runtime.exec(look)).exit_code == 0

    @property
    def _program(self) -> str:
        """The first word that is no assignment; empty: a line that only a shell can parse."""
        command = self._options.command
        try:
            words = shlex.split(command) if isinstance(command, str) else command
        except ValueError:
            return ""
        word = next((word for word in words if not ASSIGNMENT.match(word)), "")
        return "" if isinstance(command, str) and set(word) & SHELL_SIGNS else word

    @property
    def _argv(self) -> tuple[str, ...]:
        command = self._options.command
        return ("sh", "-c", command) if isinstance(command, str) else command

    def _score(self, exit_code: int, output: str) -> Score:
        wrong_run = [*self._wrong_exit(exit_code), *self._wrong_output(output)]
        wrong_tests = self._wrong_tests(output)
        expected = len(self._options.expect_tests)
        held = expected - len(wrong_tests)
        if self._options.partial and not wrong_run:
            reward = held / expected
        else:
            reward = 0.0 if wrong_run or wrong_tests else 1.0
        return Score(
            reward=reward,
            metrics={"exit_code": exit_code, "tests_expected": expected, "tests_held": held},
            reasons=(*wrong_run, *wrong_tests),
        )

    def _wrong_exit(self, exit_code: int) -> list[str]:
        wanted = self._options.wanted_exit
        return [] if wanted in (None, exit_code) else [f"expected exit code {wanted}, saw {exit_code}"]

    def _wrong_output(self, output: str) -> list[str]:
        pattern = self._options.expect_pattern
        if pattern is None or re.search(pattern, output, re.MULTILINE):
            return []
        return [f"expected output matching {pattern!r}, saw {output[-200:]!r}"]

    def _wrong_tests(self, output: str) -> list[str]:
        seen = outcomes_of(output, self._options.expect_tests)
        return [
            f"expected {test_id} {wanted}, saw {seen.get(test_id, 'no such test')}"
            for test_id, wanted in self._options.expect_tests.items()
            if seen.get(test_id) != wanted
        ]
