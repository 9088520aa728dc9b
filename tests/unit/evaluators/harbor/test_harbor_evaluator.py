"""A Harbor verifier judges the work, and work that judges itself scores nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workplace import FolderRuntime, evidence

from polar.errors import EvaluatorError
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.evaluators.harbor.evaluator import HarborEvaluator, has_own_root
from polar.evaluators.harbor.verifier_files import read_verifier_files
from polar.registry import make
from polar.types import Score, Spec, TaskRequest
from waiting import until

REWARD = '"$LOGS_DIR/verifier/reward.txt"'
VERIFIER = f"""#!/bin/sh
if sh ./answer.sh | grep -qx hello; then echo 1 >{REWARD}; else echo 0 >{REWARD}; fi
"""
SCRIPTED = f"""#!/bin/sh
if {sys.executable} "$TESTS_DIR/check.py"; then echo 1 >{REWARD}; else echo 0 >{REWARD}; fi
"""
CHECK = """import sys
sys.path.insert(0, ".")
import solution
assert solution.double(3) == 6
"""


class Place:
    """A task folder, a session's runtime and the evaluator's own, which both begin with the same base."""

    def __init__(self, root: Path) -> None:
        self.tests = root / "task" / "tests"
        self.session, self.own = FolderRuntime(root / "session"), FolderRuntime(root / "own")
        self.logs = root / "logs"
        write(self.tests / "test.sh", VERIFIER)
        for runtime in (self.session, self.own):
            write(runtime.folder / "answer.sh", "echo wrong\n")
            Path(runtime.home).mkdir()

    @property
    def evidence(self) -> Evidence:
        found = evidence(self.session, own_runtime=self.own)
        return msgspec.structs.replace(found, logs=self.logs)

    async def score(self, **options: Any) -> Score:
        return await evaluator(self.tests.parent, **options).evaluate(self.evidence)


def evaluator(folder: Path, **options: Any) -> HarborEvaluator:
    return make("evaluator", Spec(name="harbor", options={"folder": str(folder)} | options))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_the_verifiers_reward_is_the_score(place: Place) -> None:
    assert (await place.score()).reward == 0.0
    write(place.session.folder / "answer.sh", "echo hello\n")
    score = await place.score()
    assert (score.reward, score.reasons, score.metrics) == (1.0, (), {"exit_code": 0})


async def test_it_runs_in_its_own_runtime_and_its_logs_are_kept(place: Place) -> None:
    write(place.tests / "test.sh", VERIFIER + "echo judged; echo more >&2; cp answer.sh $LOGS_DIR/verifier/seen\n")
    write(place.session.folder / "answer.sh", "echo hello\n")
    await place.score()
    assert place.session.commands == []
    assert (place.logs / "verifier.txt").read_text() == "judged\nmore\n"
    assert (place.logs / "verifier" / "seen").read_text() == "echo hello\n"
    assert [path.name for path in place.logs.iterdir() if path.name.startswith("polar-")] == []


async def test_it_has_the_variables_of_the_task(place: Place) -> None:
    write(place.tests / "test.sh", f'#!/bin/sh\necho "$GRADE" >{REWARD}\n')
    assert (await place.score(env={"GRADE": "0.75"})).reward == 0.75


async def test_a_verifier_that_does_not_end_scores_zero(place: Place) -> None:
    write(place.session.folder / "answer.sh", "sleep 1000\n")
    score = await place.score(timeout_s=0.5)
    assert (score.reward, score.reasons) == (0.0, ("the verifier did not end within 0.5 s",))


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "exit 3",
            "the verifier wrote no reward.txt or reward.json; its exit code was 3; its output ends with 'no'",
        ),
        (f"echo maybe >{REWARD}", "reward.txt holds 'maybe', which is not a finite number"),
        ("exit 255", "its exit code was 255"),
        ("nonesuch; exit 127", r"test.sh may not have started \(exit code 127\)"),
    ],
)
async def test_a_verifier_without_a_reward_gives_no_verdict(place: Place, script: str, why: str) -> None:
    write(place.tests / "test.sh", f"#!/bin/sh\necho no\n{script}\n")
    with pytest.raises(EvaluatorError, match=why):
        await place.score()
    assert (await place.score(no_reward="zero")).reward == 0.0


async def test_work_that_kills_its_verifier_scores_zero(place: Place) -> None:
    write(place.session.folder / "answer.sh", "kill -9 $PPID\n")
    score = await place.score()
    assert score.reward == 0.0
    assert "the verifier was ended by signal 9" in score.reasons


async def test_work_that_kills_all_around_its_verifier_scores_zero(place: Place) -> None:
    write(place.session.folder / "answer.sh", "kill -9 -$(ps -o pgid= $$ | tr -d ' ')\n")
    score = await place.score()
    assert (score.reward, score.reasons) == (0.0, ("the verifier was ended by signal 9",))


async def test_tests_that_changed_since_the_tasks_were_read_give_no_verdict(place: Place) -> None:
    digest = read_verifier_files(place.tests).digest
    assert (await place.score(digest=digest)).reward == 0.0
    write(place.tests / "test.sh", f"#!/bin/sh\necho 1 >{REWARD}\n")
    with pytest.raises(EvaluatorError, match="have changed since the tasks were read"):
        await place.score(digest=digest)


async def test_a_folder_that_the_node_lacks_gives_no_verdict(place: Place) -> None:
    with pytest.raises(EvaluatorError, match="same path on every node"):
        await evaluator(Path("/nonesuch")).evaluate(place.evidence)


async def test_tests_that_lead_out_of_their_folder_give_no_verdict(place: Place) -> None:
    (place.tests / "data").symlink_to("/etc/passwd")
    with pytest.raises(EvaluatorError, match="leads out of its folder"):
        await place.score()


BACKGROUND = "sh -c 'until [ -d $LOGS_DIR/../verdict ] && {act}; do :; done' &"
CHEATS = {
    "echo 1 >$LOGS_DIR/verifier/reward.txt": "",
    BACKGROUND.format(act="echo 1 >$LOGS_DIR/verifier/reward.txt"): "after the verifier had ended",
    BACKGROUND.format(act="rm $LOGS_DIR/verifier/reward.txt"): "after the verifier had ended",
    "ln -s /dev/null $LOGS_DIR/verifier/reward.txt": "not a plain file",
    "echo '{\"reward\": 1}' >$LOGS_DIR/verifier/reward.json": "reward.json was not written by the verifier",
    "echo 'echo 1 >$LOGS_DIR/verifier/reward.txt' >>$TESTS_DIR/test.sh": "the tested code changed tests/test.sh",
    "rm -rf $LOGS_DIR/verifier; ln -s /tmp $LOGS_DIR/verifier": "replaced the verifier's log folder",
    "cd $LOGS_DIR/verifier && echo 1 >x && rm -f reward.txt && ln -s x reward.txt": "not a plain file",
    "cd $LOGS_DIR/.. && rm -rf tests logs; echo hello": "replaced the verifier's log folder",
}


@pytest.mark.parametrize("script", CHEATS)
async def test_work_that_writes_the_reward_itself_scores_zero(place: Place, script: str) -> None:
    """On a busy machine a process in the background may come too late to be seen, and to change anything."""
    write(place.session.folder / "answer.sh", f"exec >/dev/null 2>&1\n{script}\n")

    async def is_seen() -> bool:
        score = await place.score()
        assert score.reward == 0.0
        return CHEATS[script] in "; ".join(score.reasons)

    await until(is_seen)


@pytest.mark.parametrize(
    ("solution", "reward", "why"),
    [
        ("def double(x):\n    return 2 * x\n", 1.0, ""),
        ("def double(x):\n    return x + 2\n", 0.0, ""),
        ("import os; os._exit(0)\n", 0.0, "ended or replaced its process"),
        ("import sys; sys.exit(0)\n", 0.0, "called sys.exit"),
        ("raise SystemExit(0)\n", 0.0, "raised SystemExit"),
    ],
)
async def test_a_python_verifier_has_to_run_to_its_end(
    place: Place, solution: str, reward: float, why: str
) -> None:
    write(place.tests / "test.sh", SCRIPTED)
    write(place.tests / "check.py", CHECK)
    write(place.session.folder / "solution.py", solution)
    score = await place.score()
    assert score.reward == reward
    assert why in "; ".join(score.reasons)


async def test_a_server_that_the_verifier_starts_and_kills_is_no_disorder(place: Place) -> None:
    server = f'{sys.executable} "$TESTS_DIR/server.py" & sleep 0.5; kill $!; wait\n'
    write(place.tests / "test.sh", f"#!/bin/sh\n{server}echo 1 >{REWARD}\n")
    write(place.tests / "server.py", "import time\ntime.sleep(1000)\n")
    assert (await place.score()).reward == 1.0


async def test_what_pytest_reports_is_beside_the_reward(place: Place) -> None:
    run = f'{sys.executable} -m pytest -q -p no:cacheprovider "$TESTS_DIR/test_outputs.py"'
    write(place.tests / "test.sh", f"#!/bin/sh\n{run}\necho 0.5 >{REWARD}\n")
    write(place.tests / "test_outputs.py", "def test_a(): pass\ndef test_b(): assert 0\n")
    score = await place.score()
    assert (score.reward, score.metrics) == (0.5, {"exit_code": 0, "tests_passed": 1, "tests_failed": 1})
    assert score.reasons == ("pytest reports 1 failed tests",)


async def test_tampering_with_the_tasks_own_files_scores_zero_and_nothing_runs(place: Place) -> None:
    write(place.session.folder / "answer.sh", "echo hello\n")
    write(place.session.folder / "sitecustomize.py", "")
    score = await place.score()
    assert score.reward == 0.0
    assert "sitecustomize.py" in score.reasons[0]
    assert not (place.logs / "verifier.txt").exists()


async def test_in_the_sessions_runtime_it_also_sees_what_is_outside_the_workspace(place: Place) -> None:
    write(Path(place.session.home) / "installed", "yes")
    write(place.tests / "test.sh", f'#!/bin/sh\nif [ -e "$OUTSIDE" ]; then echo 1; else echo 0; fi >{REWARD}\n')
    env = {"OUTSIDE": f"{place.session.home}/installed"}
    assert (await place.score(where="session", env=env)).reward == 1.0
    assert place.own.commands == []


def test_its_own_runtime_may_differ_from_the_sessions(tmp_path: Path) -> None:
    runtime = Spec(name="docker", options={"image": "x", "user": "agent", "network": "gateway_only"})
    task = TaskRequest(instruction="fix it", runtime=runtime)
    asked = evaluator(tmp_path, runtime={"user": None, "network": "open"}).wants_runtime(task)
    assert asked == RuntimeRequest(runtime=Spec(name="docker", options={"image": "x", "network": "open"}))
    assert evaluator(tmp_path, where="session").wants_runtime(task) is None


def test_absolute_paths_are_made_only_where_the_root_is_not_the_nodes() -> None:
    assert has_own_root(Spec(name="docker"))
    assert has_own_root(Spec(name="apptainer"))
    assert has_own_root(Spec(name="bubblewrap", options={"image": "polar-base"}))
    assert not has_own_root(Spec(name="bubblewrap"))
    assert not has_own_root(Spec(name="local"))
