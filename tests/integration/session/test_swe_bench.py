"""Rows of a small repository, played by agents in real sessions: what resolves them, and what does not.

In `local` the tests run with this Python. In the other runtimes they need an image with pytest.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from small_agent import AGENT
from workshop import Workshop

from calc_row import FIXED, SPOOFS, calc_row, eval_script, make_bundle
from polar import registry
from polar.data.swe.reader import read_swe
from polar.data.tasks import check_tasks
from polar.errors import RuntimeFailure
from polar.runtimes.base import Runtime
from polar.runtimes.images.build import ImageOrder, build, recipe
from polar.types import Score, SessionResult, TaskRequest
from skips import skip_without_runtime

IMAGE = "polar-pytest"
PACKAGES = ("git", "python3", "python3-pytest")


def writing(path: str, text: str) -> str:
    return f"cat >{path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE"


PREPARE = [writing("~/agent.sh", AGENT.replace("echo hello >answer.txt", ""))]
"""The agent's own program is in its home, so that it is no part of its work."""


RESOLVING = {
    "gold": writing("calc.py", FIXED),
    "gold, committed": f"{writing('calc.py', FIXED)}\ngit -c user.name=a -c user.email=a@b commit -qam fix",
    "gold, with junk": f"{writing('calc.py', FIXED)}\nmkdir build; echo x >build/x; printf '\\0' >new.bin",
}
"""Scripts of agents by name."""
FAILING = {
    "nothing": (":", "the patch is empty"),
    "only junk": ("mkdir -p build; echo x >build/x", "the patch is empty"),
    "wrong": (writing("calc.py", FIXED.replace("a / b", "a * b")), "FAIL_TO_PASS did not pass"),
    "breaks another test": (writing("calc.py", FIXED.replace("a + b", "a - b")), "PASS_TO_PASS no longer passes"),
    "syntax error": (writing("calc.py", "def"), "FAIL_TO_PASS did not pass"),
    **{name: (writing(path, text), reason) for name, (path, text, reason) in SPOOFS.items()},
    "git is replaced": (
        "mkdir -p .git/hooks; git config filter.x.clean 'echo cheat'; echo '*.py filter=x' >.git/info/attributes",
        "tampering: the agent changed .git/config",
    ),
    "the runner is configured": ("printf '[tool:pytest]\\naddopts = --co\\n' >>setup.cfg", "tampering"),
}
"""By name: the agent's script, and a part of the reasons."""


async def spec_of(runtime: str) -> dict[str, Any]:
    known: type[Runtime] = registry.find("runtime", runtime)
    skip_without_runtime(runtime, await known.lacking())
    if runtime == "local":
        return {"name": runtime}
    try:
        await build(ImageOrder(IMAGE, recipe("debian", PACKAGES, None)), lambda step: None)
    except RuntimeFailure as error:
        pytest.skip(f"{runtime}: an image with pytest cannot be built: {error}")
    return {"name": runtime, "options": {"image": IMAGE}}


class Rows:
    """The calc repository as a bundle, and tasks from rows of it."""

    def __init__(self, folder: Path, runtime: dict[str, Any]) -> None:
        self._folder = folder
        self._runtime = runtime
        self.commit = make_bundle(folder / "calc", folder / "repositories" / "local__calc.bundle")
        python = shlex.quote(sys.executable) if runtime["name"] == "local" else "python3"
        self.script = eval_script(self.commit, python)

    def task(self, name: str, agent: str, options: dict[str, Any] | None = None, **row: Any) -> TaskRequest:
        task_id = re.sub(r"[^\w-]+", "-", name)
        value = calc_row(self.commit, instance_id=task_id, eval_script=self.script) | row
        path = self._folder / f"{task_id}.jsonl"
        path.write_text(json.dumps(value))
        table = {"rows": path.name, "repositories": "repositories", "evaluator": options or {}}
        (item,), skipped = read_swe(table, self._folder)
        assert skipped == []
        harness = {"name": "shell", "options": {"command": f"bash ~/agent.sh 2>/dev/null\n{agent}\n:"}}
        (task,) = check_tasks([{**item.value, "harness": harness, "runtime": self._runtime, "prepare": PREPARE}])
        return task


async def play(workshop: Workshop, tasks: dict[str, TaskRequest]) -> dict[str, SessionResult]:
    await workshop.run(["Done."], list(tasks.values()))
    by_task = {result.task_id: result for result in workshop.results.values()}
    return {name: by_task[task.task_id or ""] for name, task in tasks.items()}


async def scores_of(workshop: Workshop, rows: Rows, players: Iterable[str]) -> dict[str, Score]:
    """Plays agents by name. None of their sessions may fail."""
    scripts = RESOLVING | {name: agent for name, (agent, _) in FAILING.items()}
    seen = await play(workshop, {name: rows.task(name, scripts[name]) for name in players})
    assert {name: each.failure for name, each in seen.items() if each.failure} == {}
    return {name: each.score for name, each in seen.items() if each.score}


def check_scores(scores: dict[str, Score]) -> None:
    rewards = {name: 1.0 if name in RESOLVING else 0.0 for name in scores}
    assert {name: each for name, each in scores.items() if each.reward != rewards[name]} == {}
    expected = {name: why for name, (_, why) in FAILING.items() if name in scores}
    assert {name: scores[name].reasons for name, why in expected.items() if why not in str(scores[name])} == {}


async def test_a_right_patch_resolves_a_row_and_others_do_not(workshop: Workshop, tmp_path: Path) -> None:
    rows = Rows(tmp_path, await spec_of("local"))
    players = ("gold", "nothing", "wrong", "source forges the exit code marker")
    check_scores(await scores_of(workshop, rows, players))


@pytest.mark.check
@pytest.mark.parametrize("runtime", ["local", "bubblewrap", "docker", "apptainer"])
async def test_only_honest_work_resolves_a_row(workshop: Workshop, tmp_path: Path, runtime: str) -> None:
    rows = Rows(tmp_path, await spec_of(runtime))
    scores = await scores_of(workshop, rows, [*RESOLVING, *FAILING])
    assert len(scores) == len(RESOLVING) + len(FAILING)
    check_scores(scores)
