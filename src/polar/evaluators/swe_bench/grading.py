"""The official verdict on a log: `grader_main` in a process of its own, with a time limit."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from polar.errors import EvaluatorError
from polar.evaluators.swe_bench.grader_main import NOT_INSTALLED

GRADER = Path(__file__).with_name("grader_main.py")
LIMIT_S = 300.0
"""Far more than it needs, for a busy machine."""
MISSING = "swe_bench needs the swebench package: pip install 'polar-rollout[swe]'"


class ListedTests(BaseModel):
    success: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()


class StatusLists(BaseModel):
    FAIL_TO_PASS: ListedTests = ListedTests()
    PASS_TO_PASS: ListedTests = ListedTests()


class OfficialReport(BaseModel):
    """Of `swebench.harness.grading.get_eval_report`, for one row."""

    model_config = ConfigDict(extra="ignore")

    resolved: bool
    patch_successfully_applied: bool
    """The official name for a log that can be graded."""
    infra_failure: bool = False
    infra_failure_reason: str = ""
    tests_status: StatusLists = StatusLists()


class Grading(BaseModel):
    report: OfficialReport
    statuses: dict[str, str]
    """Of each test in the log, such as PASSED."""


def is_installed() -> bool:
    return find_spec("swebench") is not None


async def grade(row: dict[str, Any], log: Path, whole_log: Path, patch: str) -> Grading:
    """Raises `EvaluatorError` if there is no verdict. `row`: the fields of swebench's `TestSpec`."""
    logs = {"log": str(log.absolute()), "whole_log": str(whole_log.absolute())}
    order = orjson.dumps({"row": row, "patch": patch, **logs})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(GRADER)),
        cwd=log.parent,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, errors = await process.communicate(order)
    except TimeoutError as error:
        raise EvaluatorError(f"swebench did not grade the log within {LIMIT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == NOT_INSTALLED:
        raise EvaluatorError(MISSING)
    if process.returncode != 0:
        raise EvaluatorError(f"swebench cannot grade the log: {errors.decode(errors='replace').strip()[-1000:]}")
    return _read(output)


def _read(output: bytes) -> Grading:
    try:
        answer: dict[str, Any] = orjson.loads(output)
        if problem := answer.get("problem"):
            raise EvaluatorError(str(problem))
        return Grading.model_validate(answer)
    except (orjson.JSONDecodeError, ValidationError) as error:
        raise EvaluatorError(f"swebench's report cannot be read: {error}") from error
