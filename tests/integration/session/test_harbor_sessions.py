"""The example's Harbor folder in real sessions: its solution earns 1.0, and no cheat does, in any runtime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from harbor_cheats import CHEATS, WORKS_IN_SESSION
from small_agent import AGENT
from tests.unit.data.set_items import SetItems
from workshop import Workshop, shell_task

from polar import registry
from polar.data.harbor.reader import read_harbor
from polar.runtimes.base import Runtime
from polar.types import TaskRequest
from pytest_image import IMAGE, spec_with_pytest
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


PYTEST_FOLDER = {
    "instruction.md": "double(3) in /app/solution.py must be 6.",
    "task.toml": 'schema_version = "1.1"\n[environment]\ncpus = 1\nmemory_mb = 1024\n',
    "environment/Dockerfile": f"""\
FROM {IMAGE}
WORKDIR /app
RUN echo 'def double(x): return x + 2' >solution.py
""",
    "tests/test_outputs.py": """\
import sys

sys.path.insert(0, "/app")
from solution import double


def test_three():
    assert double(3) == 6
""",
    "tests/test.sh": """\
#!/bin/bash
if python3 -m pytest /tests/test_outputs.py -rA; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
""",
}
"""In the usual form of Terminal-Bench: an image with commands, absolute paths, pytest's exit code."""
PASS_ALL = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
PYTEST_AGENTS = {
    "solution": ("echo 'def double(x): return 2 * x' >/app/solution.py", 1.0, ""),
    "nothing": ("", 0.0, "pytest reports 1 failed tests"),
    "exits": ("echo 'import os; os._exit(0)' >solution.py", 0.0, "did not end in order"),
    "raises": ("echo 'raise SystemExit(0)' >solution.py", 0.0, ""),
    "configures": (f"cat >conftest.py <<'END'\n{PASS_ALL}\nEND", 0.0, "conftest.py"),
}
"""Script, reward and part of the reasons."""


def tasks_of(
    runtime: dict[str, Any], scripts: dict[str, str], base: Path = EXAMPLES, **options: Any
) -> dict[str, TaskRequest]:
    """By name, what the reader makes of the folder, with a scripted agent."""
    ((item,), skipped) = SetItems.of(read_harbor({"folders": "harbor", "runtime": runtime, **options}, base))
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


@pytest.fixture
async def pytest_image() -> None:
    await spec_with_pytest("docker")


def write_folder(root: Path, **changes: str) -> None:
    for path, text in (PYTEST_FOLDER | changes).items():
        file = root / "harbor" / "double" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.usefixtures("pytest_image")
async def test_a_folder_in_the_usual_form_of_terminal_bench(workshop: Workshop, tmp_path: Path) -> None:
    write_folder(tmp_path)
    scripts = {name: script for name, (script, _, _) in PYTEST_AGENTS.items()}
    seen = await scores(workshop, tasks_of({"name": "docker"}, scripts, tmp_path))
    expected = {name: (reward, why) for name, (_, reward, why) in PYTEST_AGENTS.items()}
    assert {name: each for name, each in seen.items() if each[0] != expected[name][0]} == {}
    assert {name: each for name, each in seen.items() if expected[name][1] not in each[1]} == {}


@pytest.mark.usefixtures("pytest_image")
async def test_an_agent_that_is_not_root_is_judged_by_root(workshop: Workshop, tmp_path: Path) -> None:
    dockerfile = PYTEST_FOLDER["environment/Dockerfile"] + "RUN touch old && chown -R 1000:1000 .\nUSER 1000\n"
    check = PYTEST_FOLDER["tests/test_outputs.py"] + "    assert not __import__('os').path.exists('/app/old')\n"
    changes = {"environment/Dockerfile": dockerfile, "tests/test_outputs.py": check}
    write_folder(tmp_path, **changes, **{"task.toml": "[verifier]\nuser = 'root'\n"})
    right = PYTEST_AGENTS["solution"][0]
    scripts = {"all": f"{right}; rm old; [ $(id -u) = 1000 ] || rm solution.py", "half": right}
    seen = await scores(workshop, tasks_of({"name": "docker"}, scripts, tmp_path))
    assert (seen["all"], seen["half"][0]) == ((1.0, ""), 0.0)
