"""A command judges the workspace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from workplace import FolderRuntime, evidence

from polar.errors import ConfigError, EvaluatorError, RuntimeFailure, WorkspaceUnusable
from polar.evaluators.test_on_output import TestOnOutput
from polar.registry import make
from polar.types import Score, Spec


def evaluator(**options: Any) -> TestOnOutput:
    return make("evaluator", Spec(name="test_on_output", options=options))


@pytest.fixture
def runtime(tmp_path: Path) -> FolderRuntime:
    return FolderRuntime(tmp_path)


async def verdict(runtime: FolderRuntime, **options: Any) -> Score:
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
