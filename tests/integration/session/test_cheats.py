"""Cheats earn nothing, in any runtime, and an honest solution beside them earns 1.0.

An agent plays each cheat of `cheats` in a real session. That they are real cheats is shown where the command runs
in the agent's own runtime, which does not defend against them: there they earn 1.0.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cheats import BASE, CHEATS, HONEST, UNDEFENDED, Cheat
from small_agent import AGENT
from workshop import Workshop, shell_task

from polar.types import TaskRequest
from pytest_image import spec_with_pytest

pytestmark = pytest.mark.check

CONTAINED = ("bubblewrap", "docker", "apptainer")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The task's workspace, with a repository."""
    folder = tmp_path / "base"
    for path, text in BASE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    name = ["-c", "user.name=task", "-c", "user.email=task@example.com"]
    for words in (["init", "-q"], ["add", "."], [*name, "commit", "-qm", "base"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def task_of(name: str, cheat: Cheat, runtime: dict[str, Any], base: Path, **options: Any) -> TaskRequest:
    python = sys.executable if runtime["name"] == "local" else "python3"
    judged_by = cheat.judged_by | options
    judged_by["command"] = judged_by["command"].replace("{python}", python)
    script = cheat.script.replace("{python}", python)
    return shell_task(
        f"bash agent.sh >/dev/null 2>&1\n{script}\n:",
        task_id=re.sub(r"[^\w-]+", "-", name),
        runtime=runtime,
        workspace={"folder": str(base)},
        files={"agent.sh": AGENT.replace("echo hello >answer.txt", "")},
        evaluator={"name": "test_on_output", "options": judged_by},
    )


async def scores(workshop: Workshop, tasks: dict[str, TaskRequest]) -> dict[str, tuple[float | None, str]]:
    """Reward and reasons by cheat."""
    await workshop.run(["Done."], list(tasks.values()))
    by_task = {result.task_id: result for result in workshop.results.values()}
    found: dict[str, tuple[float | None, str]] = {}
    for name, task in tasks.items():
        result = by_task[task.task_id or ""]
        assert result.failure is None, (name, result.failure)
        assert result.score is not None
        found[name] = (result.score.reward, "; ".join(result.score.reasons))
    return found


@pytest.mark.parametrize("runtime", ["local", *CONTAINED])
async def test_cheats_earn_nothing_and_an_honest_solution_everything(
    workshop: Workshop, runtime: str, base: Path
) -> None:
    spec = (await spec_with_pytest(runtime)).model_dump()
    tried = {name: cheat for name, cheat in CHEATS.items() if runtime in CONTAINED or not cheat.needs_containment}
    players = HONEST | UNDEFENDED | tried
    seen = await scores(workshop, {name: task_of(name, each, spec, base) for name, each in players.items()})
    assert {name: seen[name] for name in tried if seen[name][0] != 0.0} == {}
    assert {name: seen[name] for name, cheat in tried.items() if cheat.reason not in seen[name][1]} == {}
    assert {name: seen[name] for name in HONEST if seen[name] != (1.0, "")} == {}
    assert {name: seen[name] for name in UNDEFENDED if seen[name][0] != 1.0} == {}, "docs/cheating.md lists them"


async def test_each_is_a_cheat_that_works_in_the_agents_own_runtime(workshop: Workshop, base: Path) -> None:
    spec = (await spec_with_pytest("bubblewrap")).model_dump()
    tried = {name: cheat for name, cheat in CHEATS.items() if cheat.works_in_session}
    tasks = {name: task_of(name, cheat, spec, base, where="session") for name, cheat in tried.items()}
    seen = await scores(workshop, tasks)
    assert {name: each for name, each in seen.items() if each[0] != 1.0} == {}
