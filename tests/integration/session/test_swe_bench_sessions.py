"""Rows of a small repository, played by agents in real sessions: what resolves them, and what does not.

In `local` the tests run with this Python. In the other runtimes they need an image with pytest.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_agent import AGENT
from tests.unit.data.set_items import SetItems
from workshop import Workshop

from calc_row import FIXED, GOLD, SPOOFS, calc_row, eval_script, git, make_bundle, make_repository
from polar import registry
from polar.data.swe.reader import read_swe
from polar.data.tasks import check_tasks, read_task_set
from polar.runtimes.base import Runtime
from polar.types import PrepareStep, Score, SessionResult, Spec, TaskRequest
from pytest_image import IMAGE, spec_with_pytest
from skips import skip_without_runtime

ROOT = Path(__file__).parent.parent.parent.parent
RUNTIMES = [
    "local",
    "bubblewrap",
    *(pytest.param(name, marks=pytest.mark.check) for name in ("docker", "apptainer")),
]


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


class Rows:
    """The calc repository as a bundle, and tasks from rows of it."""

    def __init__(self, folder: Path, runtime: dict[str, Any]) -> None:
        self._folder = folder
        self._runtime = runtime
        self.commit = make_bundle(folder / "calc", folder / "repositories" / "local__calc.bundle")
        python = shlex.quote(sys.executable) if runtime["name"] == "local" else "python3"
        self.script = eval_script(self.commit, python)

    def task(self, name: str, agent: str, options: dict[str, Any] | None = None, **row: Any) -> TaskRequest:
        table = {"repositories": "repositories", "evaluator": options or {}}
        value = self._value(name, table, row)
        return self._checked({**value, "runtime": self._runtime, "prepare": PREPARE}, agent)

    def task_with_image(self, name: str, agent: str, image: str, table: dict[str, Any]) -> TaskRequest:
        value = self._value(name, table, {"image": image})
        return self._checked({**value, "prepare": [*value["prepare"], *PREPARE]}, agent)

    def _value(self, name: str, table: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        task_id = re.sub(r"[^\w-]+", "-", name)
        path = self._folder / f"{task_id}.jsonl"
        value = calc_row(self.commit, instance_id=task_id, eval_script=self.script) | row
        path.write_text(json.dumps(value))
        (item,), skipped = SetItems.of(read_swe({"rows": path.name, **table}, self._folder))
        assert skipped == []
        return item.value

    def _checked(self, value: dict[str, Any], agent: str) -> TaskRequest:
        (task,) = check_tasks([{**value, "harness": agent_of(agent).model_dump()}])
        return task


def agent_of(script: str) -> Spec:
    return Spec(name="shell", options={"command": f"bash ~/agent.sh 2>/dev/null\n{script}\n:"})


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
    rows = Rows(tmp_path, (await spec_with_pytest("local")).model_dump())
    players = ("gold", "nothing", "wrong", "source forges the exit code marker")
    check_scores(await scores_of(workshop, rows, players))


@pytest.mark.check
@pytest.mark.parametrize("runtime", ["local", "bubblewrap", "docker", "apptainer"])
async def test_only_honest_work_resolves_a_row(workshop: Workshop, tmp_path: Path, runtime: str) -> None:
    rows = Rows(tmp_path, (await spec_with_pytest(runtime)).model_dump())
    scores = await scores_of(workshop, rows, [*RESOLVING, *FAILING])
    assert len(scores) == len(RESOLVING) + len(FAILING)
    check_scores(scores)


async def test_a_patch_that_the_agent_hands_in(workshop: Workshop, tmp_path: Path) -> None:
    rows = Rows(tmp_path, (await spec_with_pytest("local")).model_dump())
    options = {"patch_file": "fix.patch"}
    tasks = {
        "good": rows.task("good", writing("fix.patch", GOLD), options),
        "does not apply": rows.task("bad", writing("fix.patch", GOLD.replace("a // b", "a ** b")), options),
    }
    seen = {name: each.score for name, each in (await play(workshop, tasks)).items()}
    assert seen["good"] is not None and seen["good"].reward == 1.0
    assert seen["does not apply"] is not None and seen["does not apply"].reward == 0.0
    assert "the patch cannot be applied" in seen["does not apply"].reasons[0]


async def test_a_row_whose_environment_is_broken_gives_no_reward(workshop: Workshop, tmp_path: Path) -> None:
    rows = Rows(tmp_path, (await spec_with_pytest("local")).model_dump())
    script = rows.script.replace('cd "$TESTBED"', "exit 1")
    seen = await play(workshop, {"broken": rows.task("broken", RESOLVING["gold"], eval_script=script)})
    result = seen["broken"]
    assert result.failure is not None and result.failure.where == "evaluator" and not result.failure.agent
    assert "before its start marker" in result.failure.message
    assert result.score is None or result.score.reward is None


LOOK = r"""
grep -rs test_div . ~ && echo FOUND tests
grep -rs 'a / b' . ~ && echo FOUND solution
env | grep -E 'test_div|TESTBED' && echo FOUND environment
git log --all --reflog --format='commit %H'
git remote
git tag
true
"""


async def test_the_agent_finds_neither_tests_nor_solution(workshop: Workshop, tmp_path: Path) -> None:
    rows = Rows(tmp_path, (await spec_with_pytest("local")).model_dump())
    seen = await play(workshop, {"look": rows.task("look", LOOK)})
    output = (workshop.paths.session(seen["look"].session_id).logs / "harness.stdout").read_text()
    assert "FOUND" not in output
    assert output.split("commit ")[1:] == [f"{rows.commit}\n"]


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_the_example_is_resolved_by_its_gold_patch_alone(workshop: Workshop, runtime: str) -> None:
    """With the programs of the smallest image, or the node's own."""
    known: type[Runtime] = registry.find("runtime", runtime)
    skip_without_runtime(runtime, await known.lacking())
    (task,) = read_task_set(ROOT / "examples" / "swe.toml").tasks
    cheat = writing("calc.py", f"{FIXED.replace('a / b', '0')}\nimport os\nos._exit(0)")
    agents = {"gold": RESOLVING["gold"], "cheat": cheat, "wrong": FAILING["wrong"][0]}
    common = {"runtime": Spec(name=runtime), "num_samples": 1, "prepare": (PrepareStep(run=PREPARE[0]),)}
    tasks = {
        name: task.model_copy(update={"task_id": name, "harness": agent_of(script), **common})
        for name, script in agents.items()
    }
    seen = {name: each.score for name, each in (await play(workshop, tasks)).items()}
    assert {name: score.reward for name, score in seen.items() if score} == {
        "gold": 1.0,
        "cheat": 0.0,
        "wrong": 0.0,
    }


@pytest.fixture
def image_with_repository(tmp_path: Path) -> Iterator[str]:
    """The calc repository in /testbed, with a later commit in its history that has the solution."""
    name = "polar-test-swe-calc"
    repository = tmp_path / "testbed"
    base = make_repository(repository)
    (repository / "calc.py").write_text(FIXED)
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "the fix")
    git(repository, "tag", "v2")
    git(repository, "checkout", "-q", base)
    container = docker("create", IMAGE, "true")
    docker("cp", str(repository), f"{container}:/testbed")
    docker("commit", container, name)
    docker("rm", container)
    yield name
    docker("rmi", name)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.check
async def test_a_row_with_an_image(workshop: Workshop, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rows = Rows(tmp_path, (await spec_with_pytest("docker")).model_dump())
    image: str = request.getfixturevalue("image_with_repository")
    table = {"only_local_images": True}
    seen = await play(
        workshop,
        {
            "gold": rows.task_with_image("gold", RESOLVING["gold"], image, table),
            "look": rows.task_with_image("look", LOOK, image, table),
        },
    )
    assert {name: each.failure for name, each in seen.items() if each.failure} == {}
    gold, look = seen["gold"].score, seen["look"].score
    assert gold is not None and (gold.reward, gold.reasons) == (1.0, ())
    assert look is not None and look.reasons == ("the patch is empty",)
    output = (workshop.paths.session(seen["look"].session_id).logs / "harness.stdout").read_text()
    assert "FOUND" not in output
    assert output.split("commit ")[1:] == [f"{rows.commit}\n"]
