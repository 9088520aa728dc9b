"""Scores the workspace with a command: its exit code, a pattern in its output, or the outcomes of named tests.

The command runs after the harness is dead, in a runtime of its own in which the agent never was. The agent's work
is laid over the task's own workspace there; tests, runner configuration, programs and home are the task's.
Tampering scores 0.0, and so does work that keeps the command from ending. docs/cheating.md says what is defended.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shlex
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ByteSize, Field, field_validator, model_validator

from polar.errors import EvaluatorError, NoSuchFile, PolarError, WorkspaceUnusable
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.evaluators.hardening.judges import Judges, with_last_line
from polar.evaluators.hardening.junit import agrees
from polar.evaluators.hardening.protected import WorkRules
from polar.evaluators.hardening.witness import Testimony, Witness
from polar.evaluators.hardening.work import CAP_BYTES, LaidWork, lay_work
from polar.evaluators.pytest_report import Outcome, outcomes_of
from polar.runtimes.base import Command, Runtime
from polar.types import InnerPath, Score, Strict, TaskRequest

NOT_FOUND = 127
"""The shell's exit code for a command that is not found."""

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z_0-9]*=")
SHELL_SIGNS = frozenset("$`(){};&|<>!")

MAKEFILES = ("GNUmakefile", "Makefile", "makefile")

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
    where: Literal["own", "session"] = "own"
    """own: a runtime of the evaluator's own, from the task's base. session: the one in which the agent worked, for
    tasks that judge what is outside the workspace; there an agent can replace programs and configuration."""
    protected: tuple[str, ...] = ()
    """Patterns of files whose change is tampering, beside those that are always protected. `*` also matches
    slashes; a pattern without a slash matches names in any folder."""
    allowed: tuple[str, ...] = ()
    """Patterns of protected files that the agent may change."""
    orderly_end: bool = True
    """Whether a reward needs proof that the command ran to its end: a Python script of the task's by its last
    line, pytest by its report. Without, for tests that run where they see no variable of the command's. Only with
    `own`."""
    cap_bytes: ByteSize = Field(default=ByteSize(CAP_BYTES), gt=0)
    """Size limit of the workspace. Only with `own`."""

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

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest | None:
        return RuntimeRequest() if self._options.where == "own" else None

    async def evaluate(self, evidence: Evidence) -> Score:
        limit_s = self._options.timeout_s or SHARE_OF_POSTRUN * evidence.task.budgets.postrun_s
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                own = self._options.where == "own"
                return await (self._judge_in_own(evidence) if own else self._judge_in_session(evidence.runtime))
        except TimeoutError:  # an OSError; another deadline's must pass through
            if not limit.expired():
                raise
            return Score(reward=0.0, reasons=(f"the evaluator's command did not end within {limit_s:g} s",))
        except (WorkspaceUnusable, EvaluatorError):
            raise
        except (PolarError, OSError, ValueError) as error:
            raise EvaluatorError(f"the evaluator's command could not run: {error}") from error

    async def _judge_in_own(self, evidence: Evidence) -> Score:
        laid = await lay_work(evidence, self._rules, self._options.cap_bytes)
        runtime = evidence.own_runtime
        assert runtime is not None, "the work was laid in it"
        if laid.tampering:
            return Score(reward=0.0, metrics={"tampering": len(laid.tampering)}, reasons=laid.reasons())
        scripts = await self._scripts(runtime)
        for path, text in (self._options.files | scripts).items():
            await runtime.put(path, text.encode())
        witness = Witness(runtime, evidence.logs, self._options.max_output_bytes)
        reports = bool(self._options.expect_tests)
        seen = await witness.run(self._argv, self._options.env, reports=reports)
        await self._refuse_if_not_found(runtime, seen.finished.exit_code, seen.finished.stderr_tail)
        score = self._score(seen.finished.exit_code, seen.output)
        if problems := self._false_proofs(score, seen, scripts, laid):
            metrics = score.metrics | {"tampering": len(problems)}
            return Score(reward=0.0, metrics=metrics, reasons=(*score.reasons, *problems))
        return score.model_copy(update={"reasons": (*score.reasons, *laid.notes())})

    @property
    def _rules(self) -> WorkRules:
        options = self._options
        tests = {test_id.partition("::")[0] for test_id in options.expect_tests}
        makefiles = MAKEFILES if self._program == "make" else ()
        return WorkRules(
            protected=options.protected,
            allowed=options.allowed,
            files=frozenset(options.files),
            tests=frozenset({*tests, *makefiles}),
        )

    async def _scripts(self, runtime: Runtime) -> dict[str, str]:
        """The task's own Python files that the command may run, each with a line that notes its end."""
        scripts = {path: text for path, text in self._options.files.items() if path.endswith(".py")}
        for word in self._words:
            path = word.removeprefix("./")
            if path.endswith(".py") and path not in scripts and ".." not in path and not path.startswith("/"):
                with contextlib.suppress(NoSuchFile, UnicodeDecodeError):
                    scripts[path] = (await runtime.get(path)).decode()
        return {path: with_last_line(text) for path, text in scripts.items()}

    def _false_proofs(self, score: Score, seen: Testimony, scripts: dict[str, str], laid: LaidWork) -> list[str]:
        """Why a good result cannot be believed."""
        if not score.reward or not self._options.orderly_end:
            return []
        if not seen.is_intact:
            return ["tampering: the tested code removed the evaluator's notes"]
        judges = Judges(seen.workspace, scripts, frozenset(laid.work))
        claimed = outcomes_of(seen.output, self._options.expect_tests)
        missing = [
            f"tampering: pytest's report does not have {test_id} as {outcome}, which its output claims"
            for test_id, outcome in claimed.items()
            if not agrees(test_id, outcome, seen.reports)
        ]
        return [*judges.disorder(seen.processes), *missing]

    async def _judge_in_session(self, runtime: Runtime) -> Score:
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
        await self._refuse_if_not_found(runtime, finished.exit_code, finished.stderr_tail)
        try:
            return self._score(finished.exit_code, (await runtime.get(output_path)).decode(errors="replace"))
        except FileNotFoundError:
            return self._score(finished.exit_code, finished.stdout_tail)

    async def _refuse_if_not_found(self, runtime: Runtime, exit_code: int, stderr: str) -> None:
        if exit_code == NOT_FOUND and not await self._has_program(runtime):
            raise EvaluatorError(f"the evaluator's command was not found: {stderr[-500:].strip()}")

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
        word = next((word for word in self._words if not ASSIGNMENT.match(word)), "")
        return "" if isinstance(self._options.command, str) and set(word) & SHELL_SIGNS else word

    @property
    def _words(self) -> Sequence[str]:
        command = self._options.command
        try:
            return shlex.split(command) if isinstance(command, str) else command
        except ValueError:
            return ()

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
