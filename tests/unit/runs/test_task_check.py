"""A task is sound if its solution earns 1.0 and an empty attempt 0.0; no model is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polar.config import PermitConfig
from polar.data.solutions import Solution
from polar.runs.task_check import CheckedTask, CheckPlan, check_solutions
from polar.store.paths import RunPaths
from polar.types import TaskRequest

SCRIPT = Solution.of_script({"solve.sh": b'cp "$(dirname "$0")/answer" answer.txt\n', "answer": b"42\n"})


def a_task(task_id: str, check: str = "grep -q 42 answer.txt", **fields: Any) -> TaskRequest:
    evaluator = {"name": "test_on_output", "options": {"command": check}}
    return TaskRequest.model_validate({"task_id": task_id, "instruction": "x", "evaluator": evaluator, **fields})


async def checked(folder: Path, task: TaskRequest, solution: Solution | None = SCRIPT) -> CheckedTask:
    plan = CheckPlan({} if solution is None else {str(task.task_id): solution}, PermitConfig())
    (found,) = await check_solutions([task], plan, RunPaths.create(folder))
    return found


async def test_a_sound_task(tmp_path: Path) -> None:
    found = await checked(tmp_path, a_task("good"))
    assert found.solution is not None
    assert (found.solution.reward, found.empty.reward, found.problem) == (1.0, 0.0, "")
    assert list(tmp_path.glob("*/sessions/*/place")) == [] and list(tmp_path.glob("*/owner")) == []


async def test_a_patch_is_a_solution_too(tmp_path: Path) -> None:
    patch = "--- a/answer.txt\n+++ b/answer.txt\n@@ -1 +1 @@\n-41\n+42"
    found = await checked(tmp_path, a_task("good", files={"answer.txt": "41\n"}), Solution.of_patch(patch))
    assert found.problem == ""


async def test_the_solution_is_gone_when_the_task_is_judged(tmp_path: Path) -> None:
    task = a_task("good", 'grep -q 42 answer.txt && ! find "$HOME" -name solve.sh | grep .')
    assert (await checked(tmp_path, task)).problem == ""


@pytest.mark.parametrize(
    ("task", "solution", "words"),
    [
        (a_task("none"), None, "it has no solution to check with"),
        (a_task("free", "true"), SCRIPT, "an empty attempt earns 1"),
        (
            a_task("wrong"),
            Solution.of_script({"solve.sh": b"echo cannot >&2; exit 3\n"}),
            "the solution earns 0 (its script exited with code 3: cannot",
        ),
        (a_task("broken", prepare=["exit 7"]), SCRIPT, "has no verdict (WorkspaceError: prepare step 1"),
        (
            a_task("slow", budgets={"run_s": 0.2}),
            Solution.of_script({"solve.sh": b"sleep 60\n"}),
            "the solution did not end within 0.2 s (budgets.run_s)",
        ),
    ],
)
async def test_an_unsound_task_has_its_reason(
    tmp_path: Path, task: TaskRequest, solution: Solution | None, words: str
) -> None:
    assert words in (await checked(tmp_path, task, solution)).problem
