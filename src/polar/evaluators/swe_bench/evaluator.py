"""Scores a session's patch with the tests of a SWE-bench row, as the official `swebench` package grades them.

The patch is what the agent changed, compared on the node. It is applied in a runtime in which the agent never was,
the row's eval script runs there, and `swebench` grades the log. What the node saw of the run has to agree.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ByteSize, Field, field_validator

from polar.errors import EvaluatorError, NoSuchFile, PolarError, WorkspaceUnusable
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.evaluators.hardening.protected import WorkRules
from polar.evaluators.hardening.witness import Testimony, Witness
from polar.evaluators.hardening.work import CAP_BYTES, HandedIn, LaidWork, compared_work, own_runtime
from polar.evaluators.swe_bench.grading import MISSING, Grading, grade, is_installed
from polar.evaluators.swe_bench.missing import fix_for, missing_program
from polar.evaluators.swe_bench.patch import PATCH, NotApplied, PatchTooLarge, apply_here, apply_in, patch_of
from polar.evaluators.swe_bench.proof import lies_of, suspicions, unconfirmed
from polar.evaluators.swe_bench.script import RUN, EvalLog, check_markers, log_of, runnable, uses_pytest
from polar.runtimes.base import Finished
from polar.types import InnerPath, Score, Spec, Strict, TaskRequest

TESTBED = "TESTBED"
SHARE_OF_POSTRUN = 0.8
"""The tests' share of `budgets.postrun_s`; the rest is for copies, grading and building traces."""
TIMED_OUT = 124
SHOWN = 20


class SweBenchOptions(Strict):
    """The row, without its gold patch, and how to run it."""

    instance_id: str = Field(min_length=1)
    repo: str = ""
    version: str = ""
    fail_to_pass: tuple[str, ...] = Field(min_length=1)
    pass_to_pass: tuple[str, ...] = ()
    eval_script: str
    """Bash, with a line for each marker. `$TESTBED` is the workspace."""
    log_parser: str = "parse_log_pytest"
    eval_type: Literal["pass_and_fail", "fail_only"] = "pass_and_fail"
    test_files: tuple[InnerPath, ...] = ()
    """Files of the row's test patch: the agent's versions are not used."""
    gold_files: tuple[InnerPath, ...] = ()
    """Files of the gold patch: the agent may change them whatever the rules say."""
    protected: tuple[str, ...] = ()
    """Patterns of files whose change is tampering, beside those that are always protected."""
    allowed: tuple[str, ...] = ()
    """Patterns of protected files that the agent may change."""
    patch_file: InnerPath | None = None
    """The agent hands in a patch as this file of its workspace. None: what it changed is the patch."""
    junit: bool | None = None
    """Whether pytest's own report has to confirm each passed test. None: if the test command names pytest."""
    network: Literal["none", "open"] = "none"
    """For the eval script, where the runtime can enforce that. open: what the node reaches."""
    timeout_s: float | None = Field(default=None, gt=0)
    """Time limit of the eval script, beyond which the score is 0.0. None: four fifths of `budgets.postrun_s`."""
    max_output_bytes: int = Field(default=32 * 2**20, gt=0)
    """Only the end of what the tests print, up to this size, is graded."""
    max_patch_bytes: ByteSize = Field(default=ByteSize(64 * 2**20), gt=0)
    """Size limit of the files that the agent changed, beyond which the score is 0.0."""
    cap_bytes: ByteSize = Field(default=ByteSize(CAP_BYTES), gt=0)
    """Size limit of the workspace."""

    @field_validator("eval_script")
    @classmethod
    def _has_both_markers(cls, script: str) -> str:
        return check_markers(script)

    @property
    def row(self) -> dict[str, Any]:
        """Fields of swebench's `TestSpec`. Its own runner is not used, so it needs no script."""
        return {
            "instance_id": self.instance_id,
            "image": "none",
            "eval_script_list": [],
            "repo": self.repo,
            "version": self.version,
            "FAIL_TO_PASS": list(self.fail_to_pass),
            "PASS_TO_PASS": list(self.pass_to_pass),
            "log_parser": self.log_parser,
            "eval_type": self.eval_type,
        }

    @property
    def rules(self) -> WorkRules:
        tests = {
            path for each in (*self.fail_to_pass, *self.pass_to_pass) if "::" in each and (path := _file(each))
        }
        files, gold = frozenset(self.test_files), frozenset(self.gold_files)
        return WorkRules(
            protected=self.protected,
            allowed=self.allowed,
            allowed_paths=gold - files,
            files=files,
            tests=frozenset(tests),
        )


class SweBench:
    Options: type[BaseModel] = SweBenchOptions

    def __init__(self, options: SweBenchOptions) -> None:
        if not is_installed():
            raise EvaluatorError(MISSING)
        self._options = options

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest:
        if self._options.network == "none":
            return RuntimeRequest()
        spec = Spec(name=task.runtime.name, options=task.runtime.options | {"network": "open"})
        return RuntimeRequest(runtime=spec)

    async def evaluate(self, evidence: Evidence) -> Score:
        try:
            return await self._judge(evidence)
        except (WorkspaceUnusable, EvaluatorError):
            raise
        except (PolarError, OSError, ValueError) as error:
            raise EvaluatorError(f"the row's tests could not run: {error}") from error

    async def _judge(self, evidence: Evidence) -> Score:
        try:
            handed_in = await self._handed_in(evidence)
            rules, cap_bytes = self._options.rules, self._options.cap_bytes
            async with compared_work(evidence, rules, cap_bytes, handed_in=handed_in) as work:
                laid, patch = work.laid, await patch_of(work, self._options.max_patch_bytes)
        except NotApplied as error:
            return self._zero(f"the patch cannot be applied: {error}")
        except PatchTooLarge as error:
            return self._zero(str(error))
        _keep(evidence, PATCH, patch)
        if laid.tampering:
            return self._zero(*laid.reasons(), tampering=len(laid.tampering))
        if not patch:
            return self._zero("the patch is empty", *laid.notes())
        try:
            await apply_in(own_runtime(evidence), patch)
        except NotApplied as error:  # it was made from the same base
            raise EvaluatorError(f"the patch cannot be applied in the evaluator's runtime: {error}") from error
        return await self._run_tests(evidence, laid, patch.decode(errors="replace"))

    async def _handed_in(self, evidence: Evidence) -> HandedIn | None:
        """None: the workspace itself is the work."""
        path = self._options.patch_file
        if path is None:
            return None
        try:
            patch = await evidence.runtime.get(path)
        except NoSuchFile:
            patch = b""

        async def change(folder: Path) -> None:
            if patch.strip():
                await apply_here(folder, patch)

        return change

    async def _run_tests(self, evidence: Evidence, laid: LaidWork, patch: str) -> Score:
        seen, in_time = await self._run_script(evidence)
        log = log_of(seen)
        _keep(evidence, "test_output.log", log.whole.encode(errors="replace"))
        if not seen.is_intact:
            return self._zero("tampering: the tested code removed the evaluator's notes", tampering=1)
        if log.tests is None:
            how = f"ended with code {log.exit_code}" if in_time else "ran out of time"
            end = log.setup.strip()[-500:] or seen.finished.stderr_tail.strip()[-500:]
            raise EvaluatorError(f"the eval script {how} before its start marker: {end}")
        lies = lies_of(seen, log.forged, frozenset(laid.work))
        if in_time and not lies and (program := missing_program(self._options.eval_script, seen, log)):
            raise EvaluatorError(fix_for(program))
        grading = await self._grade(evidence, log, patch)
        _keep(evidence, "report.json", orjson.dumps(grading.model_dump(), option=orjson.OPT_INDENT_2))
        score = self._score(grading, log, in_time, lies)
        if problems := lies + (self._unconfirmed(seen, grading) if score.reward else []):
            metrics = score.metrics | {"tampering": len(problems)}
            return Score(reward=0.0, metrics=metrics, reasons=(*score.reasons, *problems))
        reasons = (*score.reasons, *laid.notes(), *suspicions(patch))
        return score.model_copy(update={"reasons": reasons})

    async def _run_script(self, evidence: Evidence) -> tuple[Testimony, bool]:
        """What the run left, and whether it ended in time."""
        runtime = own_runtime(evidence)
        witness = Witness(runtime, evidence.logs, self._options.max_output_bytes)
        script = await witness.put("eval.sh", runnable(self._options.eval_script, witness.parts).encode())
        limit = asyncio.timeout(self._options.timeout_s or SHARE_OF_POSTRUN * evidence.task.budgets.postrun_s)
        try:
            async with limit:
                return await witness.run((*RUN, script), {TESTBED: runtime.workspace}, reports=True), True
        except TimeoutError:
            if not limit.expired():
                raise
            return await witness.testimony(Finished(TIMED_OUT)), False

    async def _grade(self, evidence: Evidence, log: EvalLog, patch: str) -> Grading:
        with tempfile.TemporaryDirectory(prefix="polar-grade-", dir=evidence.logs) as name:
            graded, whole = Path(name, "graded.log"), Path(name, "whole.log")
            graded.write_text(log.graded, errors="replace")
            whole.write_text(log.whole, errors="replace")
            return await grade(self._options.row, graded, whole, patch)

    def _score(self, grading: Grading, log: EvalLog, in_time: bool, lies: list[str]) -> Score:
        """`lies`: why the log cannot be believed, neither a good result nor a failure of its environment."""
        report, lists = grading.report, grading.report.tests_status
        if report.infra_failure and in_time and not log.memory_kills and not lies:
            why = report.infra_failure_reason
            raise EvaluatorError(f"the tests failed through their environment ({why}), see test_output.log")
        failed, broken = lists.FAIL_TO_PASS.failure, lists.PASS_TO_PASS.failure
        reasons = [f"FAIL_TO_PASS did not pass: {test}" for test in failed[:SHOWN]]
        reasons += [f"PASS_TO_PASS no longer passes: {test}" for test in broken[:SHOWN]]
        if more := len(failed[SHOWN:]) + len(broken[SHOWN:]):
            reasons.append(f"and {more} more tests")
        if not in_time:
            reasons.insert(0, "the tests did not end in time")
        elif not report.patch_successfully_applied:
            why = f" ({report.infra_failure_reason})" if report.infra_failure_reason else ""
            reasons.insert(0, f"the tests' output cannot be graded{why}; their exit code was {log.exit_code}")
        metrics = {
            "exit_code": float(log.exit_code),
            "f2p_passed": len(lists.FAIL_TO_PASS.success),
            "p2p_passed": len(lists.PASS_TO_PASS.success),
        }
        resolved = report.resolved and in_time
        return Score(reward=float(resolved), metrics=self._totals | metrics, reasons=tuple(reasons))

    def _unconfirmed(self, seen: Testimony, grading: Grading) -> list[str]:
        """Tests that count as passed, and that pytest's own report does not have so."""
        junit, options = self._options.junit, self._options
        by_default = options.eval_type == "pass_and_fail" and uses_pytest(options.eval_script)
        if not (by_default if junit is None else junit):
            return []
        lists = grading.report.tests_status
        counted = (*lists.FAIL_TO_PASS.success, *lists.PASS_TO_PASS.success)
        return unconfirmed({test: grading.statuses.get(test, "PASSED") for test in counted}, seen.reports)

    @property
    def _totals(self) -> dict[str, float]:
        options = self._options
        return {"f2p_total": len(options.fail_to_pass), "p2p_total": len(options.pass_to_pass)}

    def _zero(self, *reasons: str, **metrics: float) -> Score:
        none_passed = self._totals | {"f2p_passed": 0.0, "p2p_passed": 0.0}
        return Score(reward=0.0, metrics=none_passed | metrics, reasons=reasons)


def _file(test_id: str) -> str:
    return test_id.partition("::")[0]


def _keep(evidence: Evidence, name: str, content: bytes) -> None:
    if evidence.logs is not None:
        evidence.logs.mkdir(parents=True, exist_ok=True)
        (evidence.logs / name).write_bytes(content)
