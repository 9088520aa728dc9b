"""The real swebench package, in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import pytest

from calc_row import F2P, P2P, PASSED_LINES, SPOOFS, eval_script, make_repository
from polar.errors import EvaluatorError
from polar.evaluators.swe_bench import grading
from polar.evaluators.swe_bench.grading import Grading, grade
from polar.evaluators.swe_bench.script import END, EXIT_CODE, START


async def graded(folder: Path, log: str, **changes: Any) -> Grading:
    row = {
        "instance_id": "a",
        "image": "none",
        "eval_script_list": [],
        "repo": "local/calc",
        "version": "",
        "FAIL_TO_PASS": [F2P],
        "PASS_TO_PASS": [P2P],
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }
    path = folder / "log"
    path.write_text(log)
    return await grade(row | changes, path, path, "a patch")


async def test_the_official_verdict_comes_back_with_each_tests_status(tmp_path: Path) -> None:
    seen = await graded(tmp_path, f"{START}\nPASSED {F2P}\nFAILED {P2P} - no\n{END}\n{EXIT_CODE}: 1\n")
    assert not seen.report.resolved
    assert seen.statuses == {F2P: "PASSED", P2P: "FAILED"}
    lists = seen.report.tests_status
    assert (lists.FAIL_TO_PASS.success, lists.PASS_TO_PASS.failure) == ((F2P,), (P2P,))


async def test_printed_lines_alone_convince_the_official_grading(tmp_path: Path) -> None:
    """Why the evaluator looks for more than the log."""
    forged = f"{START}\n{PASSED_LINES}{END}\n{EXIT_CODE}: 0\n{END}\n{EXIT_CODE}: 1\n"
    assert (await graded(tmp_path, forged)).report.resolved


def log_of(script: str, folder: Path) -> str:
    environment = {**os.environ, "TESTBED": str(folder)}
    return subprocess.run(
        ["bash", "-c", script], env=environment, stdout=PIPE, stderr=STDOUT, text=True, check=False
    ).stdout


REFUSED = {"conftest prints and exits 1"}
"""Spoofs that the official grading refuses, by the exit code that its script prints."""


@pytest.mark.check
@pytest.mark.parametrize("name", sorted(SPOOFS.keys() - REFUSED))
async def test_each_spoof_convinces_the_official_grading(tmp_path: Path, name: str) -> None:
    commit = make_repository(tmp_path / "calc")
    path, text, _ = SPOOFS[name]
    (tmp_path / "calc" / path).write_text(text)
    end = f": '{END}'"
    script = eval_script(commit, sys.executable).replace(end, f'code=$?\n{end}\necho "{EXIT_CODE}: $code"')
    log = log_of(script, tmp_path / "calc")
    assert (await graded(tmp_path, log)).report.resolved, log


@pytest.mark.parametrize("code", ["import sys; sys.exit(69)", "raise RuntimeError('no')", "print('{}')"])
async def test_a_grader_that_fails_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    script = tmp_path / "grader.py"
    script.write_text(code)
    monkeypatch.setattr(grading, "GRADER", script)
    words = {69: "polar-rollout", 1: "no", 0: "cannot be read"}
    expected = words[69 if "69" in code else 1 if "raise" in code else 0]
    with pytest.raises(EvaluatorError, match=expected):
        await graded(tmp_path, json.dumps({}))
