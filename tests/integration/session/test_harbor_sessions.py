"""The example's Harbor folder in real sessions: its solution earns 1.0, and no cheat does, in any runtime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from harbor_cheats import CHEATS, WORKS_IN_SESSION
from small_agent import AGENT
from workshop import Workshop, shell_task

from polar import registry
from polar.data.harbor.reader import read_harbor
from polar.runtimes.base import Runtime
from polar.types import TaskRequest
from skips import skip_without_runtime

pytestmark = pytest.mark.check

EXAMPLES = Path(__file__).parents[3] / "examples"
SOLUTION = (EXAMPLES / "harbor" / "word-count" / "solution" / "solve.sh").read_text()
STAND_INS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "the node's programs": {"name": "bubblewrap"},
    "bubblewrap": {"name": "bubblewrap", "options": {"image": "polar-base"}},
    "docker": {"name": "docker"},
    "apptainer": {"name": "apptainer"},
}
OWN_ROOT = ("bubblewrap", "docker", "apptainer")


def tasks_of(runtime: dict[str, Any], scripts: dict[str, str], **options: Any) -> dict[str, TaskRequest]:
    """By name, what the reader makes of the folder, with a scripted agent."""
    ((item,), skipped) = read_harbor({"folders": "harbor", "runtime": runtime, **options}, EXAMPLES)
    assert skipped == []
    return {
        name: shell_task(
            f"bash agent.sh >/dev/null 2>&1\n{script}\n:",
            **item.value | {"task_id": re.sub(r"[^\w-]+", "-", name)},
            files={"agent.sh": AGENT.replace("echo hello >answer.txt", "")},
        )
        for name, script in scripts.items()
    }


async def scores(workshop: Workshop, tasks: dict[str, TaskRequest]) -> dict[str, tuple[float | None, str]]:
    """Reward and reasons by name."""
    workshop.permits = {"build": True}
    await workshop.run(["Done."], list(tasks.values()))
    found: dict[str, tuple[float | None, str]] = {}
    for name, task in tasks.items():
        result = workshop.results[task.session_id(0)]
        assert result.failure is None, (name, result.failure)
        assert result.score is not None
        found[name] = (result.score.reward, "; ".join(result.score.reasons))
    return found


@pytest.mark.parametrize("runtime", STAND_INS)
async def test_the_solution_earns_everything_and_a_cheat_nothing(workshop: Workshop, runtime: str) -> None:
    spec = STAND_INS[runtime]
    known: type[Runtime] = registry.find("runtime", spec["name"])
    skip_without_runtime(spec["name"], await known.lacking())
    tried = {name: cheat for name, cheat in CHEATS.items() if runtime in OWN_ROOT or not cheat.needs_root}
    scripts = {"solution": SOLUTION} | {name: cheat.script for name, cheat in tried.items()}
    seen = await scores(workshop, tasks_of(spec, scripts))
    assert seen["solution"] == (1.0, "")
    assert {name: seen[name] for name in tried if seen[name][0] != 0.0} == {}
    assert {name: seen[name] for name, cheat in tried.items() if cheat.reason not in seen[name][1]} == {}


async def test_in_the_agents_runtime_some_cheats_work_and_leftovers_do_not(workshop: Workshop) -> None:
    spec = STAND_INS["bubblewrap"]
    known: type[Runtime] = registry.find("runtime", "bubblewrap")
    skip_without_runtime("bubblewrap", await known.lacking())
    scripts = {"solution": SOLUTION} | {name: CHEATS[name].script for name in ("nothing", "writes the reward")}
    scripts |= {name: CHEATS[name].script for name in WORKS_IN_SESSION}
    seen = await scores(workshop, tasks_of(spec, scripts, where="session"))
    assert {name: reward for name, (reward, _) in seen.items()} == {
        "solution": 1.0,
        "nothing": 0.0,
        "writes the reward": 0.0,
        "replaces python": 1.0,
    }
