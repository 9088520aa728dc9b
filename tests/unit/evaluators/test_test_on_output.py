"""A command judges the workspace."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from workplace import FolderRuntime, evidence

from polar.errors import ConfigError, EvaluatorError, RuntimeFailure, WorkspaceUnusable
from polar.evaluators.base import RuntimeRequest
from polar.evaluators.test_on_output import TestOnOutput
from polar.registry import make
from polar.types import Score, Spec, TaskRequest


def evaluator(**options: Any) -> TestOnOutput:
    return make("evaluator", Spec(name="test_on_output", options=options))


async def verdict(runtime: FolderRuntime, **options: Any) -> Score:
    """Of a command in the session's own runtime."""
    return await evaluator(**({"where": "session"} | options)).evaluate(evidence(runtime))


async def test_exit_code_zero_is_what_is_expected_by_default(runtime: FolderRuntime) -> None:
    assert (await verdict(runtime, command="true")).reward == 1.0
    score = await verdict(runtime, command="exit 3")
    assert score.reward == 0.0
    assert score.reasons == ("expected exit code 0, saw 3",)
    assert score.metrics == {"exit_code": 3, "tests_expected": 0, "tests_held": 0}


async def test_another_exit_code_can_be_expected(runtime: FolderRuntime) -> None:
    assert (await verdict(runtime, command="exit 3", expect_exit=3)).reward == 1.0
    assert (await verdict(runtime, command="true", expect_exit=3)).reward == 0.0
    assert (await verdict(runtime, command="exit 127", expect_exit=127)).reward == 1.0


@pytest.mark.parametrize(
    "command", ["sh answer.sh", ("sh", "answer.sh"), "A=b sh answer.sh", "cd . && sh answer.sh"]
)
async def test_an_agent_does_not_void_its_zero_by_a_code_of_127(
    runtime: FolderRuntime, command: str | tuple[str, ...]
) -> None:
    await runtime.put("answer.sh", b"echo sh: 1: pytest: not found >&2; exit 127")
    score = await verdict(runtime, command=command)
    assert (score.reward, score.reasons) == (0.0, ("expected exit code 0, saw 127",))


async def test_the_command_runs_in_the_workspace_with_its_environment_and_log(runtime: FolderRuntime) -> None:
    (runtime.folder / "answer.txt").write_text("forty-two\n")
    score = await verdict(
        runtime, command='cat answer.txt; echo "$MOOD"', env={"MOOD": "fine"}, expect_pattern=r"^forty-\w+\nfine$"
    )
    assert score.reward == 1.0
    assert runtime.commands[0].log_name == "evaluator"


async def test_an_argv_is_not_read_by_a_shell(runtime: FolderRuntime) -> None:
    score = await verdict(runtime, command=["printf", "%s", "$HOME; exit 1"], expect_pattern=r"^\$HOME; exit 1$")
    assert score.reward == 1.0


async def test_a_pattern_that_is_not_found_says_what_was_seen(runtime: FolderRuntime) -> None:
    score = await verdict(runtime, command="echo no", expect_pattern="^yes$")
    assert score.reward == 0.0
    assert score.reasons == ("expected output matching '^yes$', saw 'no\\n'",)


async def test_all_expectations_have_to_hold(runtime: FolderRuntime) -> None:
    score = await verdict(runtime, command="echo no; exit 1", expect_pattern="yes")
    assert len(score.reasons) == 2


async def test_files_are_laid_over_those_of_the_agent(runtime: FolderRuntime) -> None:
    (runtime.folder / "check.sh").write_text("exit 0  # the agent's idea of a test")
    assert (await verdict(runtime, command="sh check.sh", files={"check.sh": "exit 1"})).reward == 0.0


async def test_where_the_command_runs() -> None:
    task = TaskRequest(instruction="fix it")
    assert evaluator(command="true").wants_runtime(task) == RuntimeRequest()
    assert evaluator(command="true", where="session").wants_runtime(task) is None


@pytest.fixture
def own_runtime(tmp_path: Path) -> FolderRuntime:
    """The evaluator's own, with the task's base: a bug and its test."""
    own = FolderRuntime(tmp_path / "own", tail_bytes=4000)
    (own.folder / "tests").mkdir(parents=True)
    (own.folder / "solution.py").write_text("def double(x):\n    return x + 2\n")
    (own.folder / "tests/test_double.py").write_text(TEST_DOUBLE)
    return own


TEST_DOUBLE = """\
from solution import double

def test_two():
    assert double(2) == 4

def test_three():
    assert double(3) == 6
"""
RIGHT = "def double(x):\n    return 2 * x\n"
RUN_TESTS: dict[str, Any] = {
    "command": [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "tests"],
    "env": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    "expect_tests": {f"tests/test_double.py::{name}": "passed" for name in ("test_two", "test_three")},
}
CHECK = "from solution import double\nassert double(3) == 6\nprint('all is well')\n"
RUN_SCRIPT: dict[str, Any] = {
    "command": [sys.executable, "check.py"],
    "files": {"check.py": CHECK},
    "expect_pattern": "^all is well$",
}


async def own_verdict(own: FolderRuntime, work: dict[str, str], **options: Any) -> Score:
    """Of a command in the evaluator's own runtime; `work` is what the agent wrote over the base."""
    session = FolderRuntime(own.folder.with_name("session"))
    shutil.copytree(own.folder, session.folder)
    for path, text in work.items():
        (session.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (session.folder / path).write_text(text)
    return await evaluator(**options).evaluate(evidence(session, own_runtime=own))


@pytest.mark.parametrize("judged_by", [RUN_TESTS, RUN_SCRIPT])
async def test_work_is_judged_in_the_evaluators_own_runtime(
    own_runtime: FolderRuntime, judged_by: dict[str, Any]
) -> None:
    score = await own_verdict(own_runtime, {"solution.py": RIGHT}, **judged_by)
    assert (score.reward, score.reasons) == (1.0, ())


async def test_no_work_is_worth_nothing(own_runtime: FolderRuntime) -> None:
    score = await own_verdict(own_runtime, {}, **RUN_SCRIPT)
    assert score.reward == 0.0 and "tampering" not in score.metrics


async def test_an_edited_test_is_restored_and_the_work_counts(own_runtime: FolderRuntime) -> None:
    score = await own_verdict(own_runtime, {"solution.py": RIGHT, "tests/test_double.py": "fail"}, **RUN_SCRIPT)
    assert score.reward == 1.0
    assert score.reasons == ("the agent changed tests/test_double.py: the task's own was used",)


async def test_the_agents_version_of_an_evaluators_file_is_noted_and_not_used(own_runtime: FolderRuntime) -> None:
    work = {"check.py": "raise SystemExit(0)\n"}
    score = await own_verdict(own_runtime, work, command="python3 check.py", files={"check.py": "assert False\n"})
    assert score.reward == 0.0
    assert score.reasons == ("expected exit code 0, saw 1", "the agent changed check.py: the task's own was used")


async def test_tampering_scores_zero_whatever_the_work(own_runtime: FolderRuntime) -> None:
    work = {"solution.py": RIGHT, "conftest.py": ""}
    score = await own_verdict(own_runtime, work, **RUN_TESTS)
    assert (score.reward, score.metrics) == (0.0, {"tampering": 1})
    assert score.reasons == ("tampering: the agent changed conftest.py, which is the task's",)


async def test_a_task_may_allow_a_change(own_runtime: FolderRuntime) -> None:
    work = {"solution.py": RIGHT, "conftest.py": ""}
    assert (await own_verdict(own_runtime, work, **RUN_SCRIPT, allowed=["conftest.py"])).reward == 1.0


END = "import os\nprint('all is well', flush=True)\nos._exit(0)\n"


async def test_code_that_ends_its_judge_is_tampering(own_runtime: FolderRuntime) -> None:
    score = await own_verdict(own_runtime, {"solution.py": END}, **RUN_SCRIPT)
    assert score.reward == 0.0 and score.metrics["tampering"] == 1
    assert score.reasons[0].startswith("tampering: ")


async def test_code_that_removes_the_notes_is_tampering(own_runtime: FolderRuntime) -> None:
    gone = "import os, shutil\nshutil.rmtree(os.environ['PYTHONPATH'] + '/notes')\n"
    score = await own_verdict(own_runtime, {"solution.py": gone + END}, **RUN_SCRIPT)
    assert score.reasons == ("tampering: the tested code removed the evaluator's notes",)


async def test_make_uses_the_makefile_of_the_task(own_runtime: FolderRuntime) -> None:
    (own_runtime.folder / "Makefile").write_text("check:\n\tfalse\n")
    score = await own_verdict(own_runtime, {"Makefile": "check:\n\ttrue\n"}, command="make check")
    assert score.reward == 0.0


async def test_the_orderly_end_can_be_waived(own_runtime: FolderRuntime) -> None:
    score = await own_verdict(own_runtime, {"solution.py": END}, **RUN_SCRIPT, orderly_end=False)
    assert score.reward == 1.0


async def test_output_that_claims_what_no_report_has(own_runtime: FolderRuntime) -> None:
    lines = "".join(f"PASSED {test_id}\\n" for test_id in RUN_TESTS["expect_tests"])
    score = await own_verdict(own_runtime, {}, **RUN_TESTS | {"command": f"printf '{lines}'"})
    assert score.reward == 0.0
    assert score.reasons[0].startswith("tampering: pytest's report does not have tests/test_double.py::test_two")


async def test_reports_of_more_than_one_pytest_count(own_runtime: FolderRuntime) -> None:
    run = f"{sys.executable} -m pytest -rA -q -p no:cacheprovider tests -k"
    command = f"({run} two & {run} three; wait) | grep ^PASSED"
    score = await own_verdict(own_runtime, {"solution.py": RIGHT}, **RUN_TESTS | {"command": command})
    assert (score.reward, score.reasons) == (1.0, ())


async def test_nothing_of_the_evaluator_is_left_in_the_workspace(own_runtime: FolderRuntime) -> None:
    await own_verdict(own_runtime, {"solution.py": RIGHT}, **RUN_SCRIPT)
    left = {path.name for path in own_runtime.folder.iterdir()} - {"__pycache__"}
    assert left == {"check.py", "solution.py", "tests"}


async def test_a_missing_command_in_the_own_runtime_is_an_error(own_runtime: FolderRuntime) -> None:
    with pytest.raises(EvaluatorError, match="was not found"):
        await own_verdict(own_runtime, {}, command="no-such-program")


SUMMARY = "PASSED t.py::test_a\nFAILED t.py::test_b - assert 0\n"


async def test_tests_decide_by_their_outcomes_whatever_the_exit_code(runtime: FolderRuntime) -> None:
    expected = {"t.py::test_a": "passed", "t.py::test_b": "failed"}
    score = await verdict(runtime, command=f"printf '{SUMMARY}'; exit 1", expect_tests=expected)
    assert score.reward == 1.0
    assert score.metrics == {"exit_code": 1, "tests_expected": 2, "tests_held": 2}


async def test_a_test_with_another_outcome_or_none_is_named(runtime: FolderRuntime) -> None:
    expected = {"t.py::test_a": "passed", "t.py::test_b": "passed", "t.py::test_c": "passed"}
    score = await verdict(runtime, command=f"printf '{SUMMARY}'", expect_tests=expected)
    assert score.reward == 0.0
    assert score.reasons == (
        "expected t.py::test_b passed, saw failed",
        "expected t.py::test_c passed, saw no such test",
    )


async def test_partial_is_the_share_of_tests_that_hold(runtime: FolderRuntime) -> None:
    expected = {"t.py::test_a": "passed", "t.py::test_b": "passed"}
    command = f"printf '{SUMMARY}'; exit 1"
    assert (await verdict(runtime, command=command, expect_tests=expected, partial=True)).reward == 0.5
    with_exit = await verdict(runtime, command=command, expect_tests=expected, partial=True, expect_exit=0)
    assert with_exit.reward == 0.0


async def test_more_output_is_read_than_a_runtime_returns(runtime: FolderRuntime) -> None:
    score = await verdict(runtime, command="echo first; seq 1000", expect_pattern="^first$")
    assert score.reward == 1.0


async def test_output_is_read_up_to_its_limit_from_the_end(runtime: FolderRuntime) -> None:
    options = {"command": "echo first; seq 1000; echo last", "max_output_bytes": 50}
    assert (await verdict(runtime, expect_pattern="^last$", **options)).reward == 1.0
    assert (await verdict(runtime, expect_pattern="^first$", **options)).reward == 0.0


async def test_a_real_pytest_run(runtime: FolderRuntime) -> None:
    (runtime.folder / "solution.py").write_text("def double(x):\n    return x + 2\n")
    tests = "from solution import double\n\ndef test_two():\n    assert double(2) == 4\n\n"
    tests += "def test_three():\n    assert double(3) == 6\n"
    score = await verdict(
        runtime,
        command=[sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_double.py"],
        files={"test_double.py": tests},
        expect_tests={"test_double.py::test_two": "passed", "test_double.py::test_three": "passed"},
        partial=True,
    )
    assert score.reward == 0.5
    assert score.reasons == ("expected test_double.py::test_three passed, saw failed",)


@pytest.mark.parametrize("command", ["no-such-program --all", ["no-such-program"]])
async def test_a_missing_command_is_an_error_and_not_a_zero(runtime: FolderRuntime, command: Any) -> None:
    with pytest.raises(EvaluatorError, match=r"command was not found.*no-such-program"):
        await verdict(runtime, command=command)


async def test_a_runtime_that_fails_is_an_error_and_not_a_zero(tmp_path: Path) -> None:
    broken = FolderRuntime(tmp_path, failure=RuntimeFailure("the runtime is gone"))
    with pytest.raises(EvaluatorError, match="could not run: the runtime is gone"):
        await verdict(broken, command="true")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", ""])
def test_a_file_outside_the_workspace_is_refused_with_the_task(path: str) -> None:
    with pytest.raises(ConfigError, match="files"):
        evaluator(command="true", files={path: ""})


async def test_what_an_agent_put_in_the_place_of_a_file_gives_way_and_its_target_stays(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside):
        folder.mkdir()
    (outside / "kept").write_text("kept")
    (outside / "kept").chmod(0o400)
    (inside / "tests").symlink_to(outside)
    (inside / "-rf").symlink_to(outside)
    (inside / "a folder").mkdir()
    files = {"tests/deep/one.sh": "true\n", "-rf": "true\n", "a folder": "true\n"}
    score = await verdict(FolderRuntime(inside), command="sh tests/deep/one.sh", files=files)
    assert score.reward == 1.0
    assert (inside / "a folder").is_file() and not (inside / "-rf").is_symlink()
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").stat().st_mode & 0o777 == 0o400


async def test_a_command_that_reads_a_dead_pipe_ends(runtime: FolderRuntime) -> None:
    os.mkfifo(runtime.folder / "answer.txt")
    assert (await verdict(runtime, command="cat answer.txt")).reward == 0.0


async def test_a_command_that_does_not_end_is_worth_nothing(runtime: FolderRuntime) -> None:
    score = await verdict(runtime, command="sleep 600", timeout_s=0.2)
    assert score.reward == 0.0 and score.reasons == ("the evaluator's command did not end within 0.2 s",)


async def test_an_unusable_workspace_is_reported_as_such(tmp_path: Path) -> None:
    gone = FolderRuntime(tmp_path, failure=WorkspaceUnusable("the workspace has no folder '.'"))
    with pytest.raises(WorkspaceUnusable):
        await verdict(gone, command="true")


async def test_a_time_out_belongs_to_whoever_set_it(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        await verdict(FolderRuntime(tmp_path, failure=TimeoutError()), command="true")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "command"),
        ({"command": ""}, "command"),
        ({"command": []}, "command"),
        ({"command": "true", "expect_pattern": "("}, "not a regular expression"),
        ({"command": "true", "expect_tests": {"t": "perfect"}}, "expect_tests"),
        ({"command": "true", "partial": True}, "partial needs expect_tests"),
        ({"command": "true", "expect_exitcode": 1}, "expect_exitcode"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluator(**options)
