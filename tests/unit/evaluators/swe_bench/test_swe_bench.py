"""The evaluator in a folder runtime: real git, real pytest, the real swebench package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workplace import FolderRuntime, evidence

from calc_row import F2P, FIXED, GOLD, P2P, PASSED_LINES, SPOOFS, WRAPPING_CONFTEST, eval_script, make_repository
from polar.errors import EvaluatorError
from polar.evaluators.swe_bench import evaluator as module
from polar.evaluators.swe_bench.evaluator import SweBench, SweBenchOptions
from polar.runtimes.base import Command, Finished
from polar.types import Score, TaskRequest


class LimitedRuntime(FolderRuntime):
    """The kernel killed a process of each command."""

    async def exec(self, command: Command) -> Finished:
        return msgspec.structs.replace(await super().exec(command), memory_kills=1)


class Case:
    def __init__(self, folder: Path) -> None:
        self.agent, self.own, self.logs = folder / "agent", folder / "own", folder / "logs"
        self.commit = make_repository(self.agent)
        make_repository(self.own)
        self.logs.mkdir()

    def write(self, path: str, text: str) -> None:
        (self.agent / path).parent.mkdir(parents=True, exist_ok=True)
        (self.agent / path).write_text(text)

    async def score(self, own: FolderRuntime | None = None, **changes: Any) -> Score:
        options: dict[str, Any] = {
            "instance_id": "local__calc-1",
            "repo": "local/calc",
            "version": "0.1",
            "fail_to_pass": (F2P,),
            "pass_to_pass": (P2P,),
            "eval_script": eval_script(self.commit, sys.executable),
            "test_files": ("test_calc.py",),
            "gold_files": ("calc.py",),
        }
        seen = evidence(FolderRuntime(self.agent), own_runtime=own or FolderRuntime(self.own))
        evaluator = SweBench(SweBenchOptions.model_validate(options | changes))
        return await evaluator.evaluate(msgspec.structs.replace(seen, logs=self.logs))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


async def test_the_gold_patch_resolves_the_row(case: Case) -> None:
    case.write("calc.py", FIXED)
    score = await case.score()
    assert (score.reward, score.reasons) == (1.0, ())
    assert score.metrics == {"f2p_passed": 1, "f2p_total": 1, "p2p_passed": 1, "p2p_total": 1, "exit_code": 0}
    assert "a / b" in (case.logs / "patch.diff").read_text()
    assert f"PASSED {F2P}" in (case.logs / "test_output.log").read_text()
    assert '"resolved": true' in (case.logs / "report.json").read_text()
    assert sorted(path.name for path in case.logs.iterdir()) == [
        "patch.diff",
        "report.json",
        "test_output.log",
        "work.txt",
    ]


async def test_logs_may_be_relative_to_the_working_folder(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.logs.parent)
    case.logs = Path("logs")
    case.write("calc.py", FIXED)
    case.write("new.py", "x = 1\n")
    assert (await case.score()).reward == 1.0


@pytest.mark.parametrize("name", SPOOFS)
async def test_spoofs_earn_nothing(case: Case, name: str) -> None:
    path, text, reason = SPOOFS[name]
    case.write(path, text)
    score = await case.score()
    assert score.reward == 0.0
    assert any(each.startswith(reason) for each in score.reasons), score.reasons


async def test_a_wrong_patch_names_the_tests_that_failed(case: Case) -> None:
    case.write("calc.py", FIXED.replace("a / b", "a * b").replace("a + b", "a - b"))
    score = await case.score()
    assert score.reward == 0.0
    assert score.reasons == (f"FAIL_TO_PASS did not pass: {F2P}", f"PASS_TO_PASS no longer passes: {P2P}")
    assert (score.metrics["f2p_passed"], score.metrics["p2p_passed"], score.metrics["exit_code"]) == (0, 0, 1)


async def test_no_change_is_an_empty_patch_and_nothing_runs(case: Case) -> None:
    score = await case.score()
    assert (score.reward, score.reasons) == (0.0, ("the patch is empty",))
    assert not (case.logs / "test_output.log").exists()


async def test_a_huge_change_scores_0(case: Case) -> None:
    case.write("calc.py", FIXED)
    score = await case.score(max_patch_bytes=10)
    assert score.reward == 0.0 and "more than max_patch_bytes" in score.reasons[0]


async def test_files_that_git_ignores_are_no_work(case: Case) -> None:
    case.write("build/out.txt", "x")
    case.write("run.log", "x")
    assert (await case.score()).reasons == ("the patch is empty",)


async def test_changed_tests_are_the_rows_own_again(case: Case) -> None:
    case.write("calc.py", FIXED)
    case.write("test_calc.py", "def test_add():\n    assert False\n")
    score = await case.score()
    assert (score.reward, score.reasons) == (1.0, ("the agent changed test_calc.py: the task's own was used",))


async def test_a_protected_file_that_the_gold_patch_changes_is_work(case: Case) -> None:
    case.write("calc.py", FIXED)
    case.write("conftest.py", "# needed\n")
    assert (await case.score()).reward == 0.0
    assert (await case.score(gold_files=("calc.py", "conftest.py"))).reward == 1.0


async def test_allowed_by_gold_holds_for_that_path_only(case: Case) -> None:
    case.write("calc.py", FIXED)
    case.write("inner/conftest.py", WRAPPING_CONFTEST)
    score = await case.score(gold_files=("calc.py", "conftest.py"))
    assert (score.reward, score.metrics["tampering"]) == (0.0, 1)


class TestHandedIn:
    async def test_a_patch_file_is_the_work(self, case: Case) -> None:
        case.write("fix.patch", GOLD)
        assert (await case.score(patch_file="fix.patch")).reward == 1.0
        assert "fix.patch" not in (case.logs / "patch.diff").read_text()

    async def test_context_that_is_a_little_off_still_applies(self, case: Case) -> None:
        case.write("fix.patch", GOLD.replace(" def div(a, b):", " def div(a, b):  # the ratio"))
        assert (await case.score(patch_file="fix.patch")).reward == 1.0

    async def test_one_that_cannot_be_applied_scores_0(self, case: Case) -> None:
        case.write("fix.patch", GOLD.replace("a // b", "no such line"))
        score = await case.score(patch_file="fix.patch")
        assert score.reward == 0.0
        assert score.reasons[0].startswith("the patch cannot be applied")

    async def test_none_is_an_empty_patch(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        assert (await case.score(patch_file="fix.patch")).reasons == ("the patch is empty",)

    async def test_it_cannot_leave_the_repository(self, case: Case, tmp_path: Path) -> None:
        outside = "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"
        case.write("fix.patch", outside)
        assert (await case.score(patch_file="fix.patch")).reward == 0.0
        assert list(tmp_path.rglob("x")) == []

    async def test_tampering_in_it_is_tampering(self, case: Case) -> None:
        new = "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
        case.write("fix.patch", f"{GOLD}{new}@@ -0,0 +1 @@\n+x = 1\n")
        assert (await case.score(patch_file="fix.patch")).reasons[0].startswith("tampering")


class TestTheScript:
    async def test_tests_that_do_not_end_score_0_and_keep_their_log(self, case: Case) -> None:
        case.write("calc.py", FIXED + "\nimport time\nprint('going', flush=True)\ntime.sleep(600)\n")
        score = await case.score(timeout_s=3.0, eval_script=eval_script(case.commit, f"{sys.executable} -u"))
        assert (score.reward, score.reasons[0]) == (0.0, "the tests did not end in time")
        assert "Start Test Output" in (case.logs / "test_output.log").read_text()

    async def test_an_end_before_the_start_marker_is_no_verdict(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        script = eval_script(case.commit).replace('cd "$TESTBED"', "echo no such environment; exit 3")
        with pytest.raises(EvaluatorError, match=r"code 3 before its start marker: .*no such environment"):
            await case.score(eval_script=script)

    async def test_a_broken_environment_is_no_verdict(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        script = eval_script(case.commit).replace("python3 -m pytest", "echo Cannot allocate memory; false")
        with pytest.raises(EvaluatorError, match="out_of_memory"):
            await case.score(eval_script=script)

    async def test_code_that_pretends_a_broken_environment_scores_0(self, case: Case) -> None:
        case.write("calc.py", "import os\nos.write(1, b'\\nKilled\\n')\nos._exit(1)\n")
        script = eval_script(case.commit, sys.executable).replace("-m pytest -rA", "-c 'import calc' #")
        score = await case.score(eval_script=script)
        assert score.reward == 0.0 and score.reasons[-1].startswith("tampering")

    async def test_the_tasks_own_memory_limit_is_no_broken_environment(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        script = eval_script(case.commit).replace("python3 -m pytest", "echo Killed; false")
        score = await case.score(own=LimitedRuntime(case.own), eval_script=script)
        assert score.reward == 0.0
        assert score.reasons[0] == "the tests' output cannot be graded (out_of_memory); their exit code was 1"

    async def test_a_run_without_results_scores_0(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        score = await case.score(eval_script=eval_script(case.commit, "false"))
        assert score.reward == 0.0
        assert score.reasons[0] == "the tests' output cannot be graded; their exit code was 1"

    async def test_results_that_another_runner_prints_count_without_a_report(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        script = eval_script(case.commit).replace("python3 -m pytest", f"printf '{PASSED_LINES}'; true")
        assert (await case.score(eval_script=script)).reward == 1.0

    async def test_an_unknown_log_parser_is_no_verdict(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        with pytest.raises(EvaluatorError, match=r"no log parser 'parse_nothing'; it has .*parse_log_pytest"):
            await case.score(log_parser="parse_nothing")


class TestMissingPrograms:
    """What the runtime lacks says nothing about the patch; what the repository lacks is the agent's doing."""

    @pytest.mark.parametrize(
        ("command", "named"),
        [
            ("no-such-runner -rA test_calc.py", "no no-such-runner, .*--apt no-such-runner"),
            ("CI=1 no-such-runner test_calc.py | tee out.txt", "no no-such-runner,"),
            ("/no/such/bin/pytest -rA test_calc.py", "no /no/such/bin/pytest, .*--pip pytest"),
            ("/no/such/bin/python3 -m pytest -rA \\\n test_calc.py", "no /no/such/bin/python3, .*--apt python3"),
            ("/dev/null/bin/pytest", "no /dev/null/bin/pytest,"),
        ],
    )
    async def test_a_program_that_the_runtime_lacks_is_no_verdict(
        self, case: Case, command: str, named: str
    ) -> None:
        case.write("calc.py", FIXED)
        with pytest.raises(EvaluatorError, match=rf"the runtime has {named}"):
            await case.score(eval_script=_with_command(case, command))
        assert "Start Test Output" in (case.logs / "test_output.log").read_text()

    async def test_a_python_without_pytest_is_no_verdict(self, case: Case) -> None:
        case.write("calc.py", FIXED)
        with pytest.raises(EvaluatorError, match=r"has no pytest, .*polar image build NAME --pip pytest"):
            await case.score(eval_script=_with_command(case, f"{sys.executable} -S -m pytest test_calc.py"))

    @pytest.mark.parametrize(
        "command",
        [
            "./run_tests",
            '"$TESTBED/run_tests"',
            "{own}/bin/pytest -rA",
            "bin/python3 -m pytest",
            "bash -c 'no-such-runner'",
            "{python} -c 'import sys; sys.exit(127)'",
            "no-such-program; ./run_tests",
            "{python} -c 'pass'; ./run_tests pytest",
        ],
    )
    async def test_what_the_repository_lacks_scores_0(self, case: Case, command: str) -> None:
        case.write("calc.py", FIXED)
        command = command.format(own=case.own, python=sys.executable)
        score = await case.score(eval_script=_with_command(case, command))
        assert (score.reward, score.metrics["exit_code"]) == (0.0, 127)

    async def test_tested_code_that_chooses_the_exit_code_scores_0(self, case: Case) -> None:
        case.write("calc.py", "import sys\nsys.exit(127)\n")
        score = await case.score(eval_script=_with_command(case, f"{sys.executable} calc.py pytest"))
        assert (score.reward, score.metrics["exit_code"]) == (0.0, 127)

    async def test_code_that_pretends_a_missing_pytest_scores_0(self, case: Case) -> None:
        line = "/usr/bin/python3: No module named pytest"
        case.write("calc.py", f"import os, sys\nos.write(2, b'{line}\\n')\nsys.exit(1)\n")
        assert (await case.score()).reward == 0.0


def _with_command(case: Case, command: str) -> str:
    usual = "python3 -m pytest -rA -p no:cacheprovider test_calc.py"
    assert usual in eval_script(case.commit)
    return eval_script(case.commit).replace(usual, command)


async def test_words_that_cheats_use_are_pointed_out_and_cost_nothing(case: Case) -> None:
    case.write("calc.py", FIXED + "\n# not os._exit\n")
    score = await case.score()
    assert (score.reward, score.reasons) == (1.0, ("look at the patch: it adds 'os._exit'",))


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda: False)
    with pytest.raises(EvaluatorError, match=r"pip install 'polar-rollout\[swe\]'"):
        SweBench(SweBenchOptions(instance_id="a", fail_to_pass=("t",), eval_script=eval_script("0")))


def test_the_network_is_open_only_if_the_options_ask_for_it() -> None:
    task = TaskRequest.model_validate({"instruction": "fix", "runtime": {"name": "docker"}})
    options = SweBenchOptions(instance_id="a", fail_to_pass=("t",), eval_script=eval_script("0"))
    assert SweBench(options).wants_runtime(task).runtime is None
    opened = SweBench(options.model_copy(update={"network": "open"})).wants_runtime(task).runtime
    assert opened is not None and opened.options == {"network": "open"}
