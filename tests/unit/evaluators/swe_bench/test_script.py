from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from polar.evaluators.swe_bench.script import (
    END,
    EXIT_CODE,
    RUN,
    START,
    EvalLog,
    check_markers,
    runnable,
    uses_pytest,
)

SCRIPT = f"set -ux\necho before\n: '{START}'\necho tests; (exit 5)\n: '{END}'\necho after\n"


def run(script: str, folder: Path) -> EvalLog:
    (folder / "parts").mkdir()
    path = folder / "eval.sh"
    path.write_text(runnable(script, str(folder / "parts")))
    finished = subprocess.run([*RUN, str(path)], check=False)
    parts = {each.name: each.read_text() for each in (folder / "parts").iterdir()}
    return EvalLog(parts.get("setup", ""), parts.get("tests"), parts.get("rest"), finished.returncode)


def test_parts_arrive_apart_and_the_exit_code_is_the_tests(tmp_path: Path) -> None:
    log = run(SCRIPT, tmp_path)
    assert "before" in log.setup and "tests" not in log.setup
    assert log.tests is not None and log.tests.splitlines()[:2] == ["++ echo tests", "tests"]
    assert log.rest is not None and "after" in log.rest
    assert log.exit_code == 5
    assert log.graded.endswith(f"{END}\n{EXIT_CODE}: 5\n")
    assert log.forged == ()


def test_a_script_that_ends_early_has_no_end_marker(tmp_path: Path) -> None:
    log = run(SCRIPT.replace("(exit 5)", "exit 5"), tmp_path)
    assert log.rest is None and END not in log.graded and log.exit_code == 5


def test_code_that_rewrites_the_script_changes_nothing(tmp_path: Path) -> None:
    rewrite = f"echo 'exit 0' >>{tmp_path}/eval.sh; echo 'exit 0' >{tmp_path}/eval.sh; (exit 5)"
    assert run(SCRIPT.replace("(exit 5)", rewrite), tmp_path).exit_code == 5


@pytest.mark.parametrize("marker", [START, END, EXIT_CODE])
def test_markers_that_the_tests_print_are_noticed_and_not_graded(tmp_path: Path, marker: str) -> None:
    log = run(SCRIPT.replace("echo tests", f"printf '%s%s\\n' '{marker[:8]}' '{marker[8:]}: 0'"), tmp_path)
    assert log.forged == (marker,)
    assert log.graded.count(marker) == 1


def test_the_setups_output_is_not_graded(tmp_path: Path) -> None:
    log = run(SCRIPT.replace("echo before", "echo PASSED test_a"), tmp_path)
    assert "PASSED test_a" in log.whole and "PASSED test_a" not in log.graded


@pytest.mark.parametrize(
    "script", ["echo hi", f": '{START}'", f": '{END}'\n: '{START}'", f": '{START}'\n: '{START}'\n: '{END}'"]
)
def test_a_script_needs_each_marker_once(script: str) -> None:
    with pytest.raises(ValueError, match="eval_script needs one line with"):
        check_markers(script)


def test_only_the_test_command_tells_whether_pytest_runs() -> None:
    assert uses_pytest(SCRIPT.replace("echo tests", "python -m pytest"))
    assert not uses_pytest(SCRIPT.replace("echo before", "pip install pytest"))
