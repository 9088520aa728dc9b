"""The files of whole sessions: what a workspace begins with, and what is kept of it whatever the outcome."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from workshop import WRITE, Workshop, agent_task, shell_task

from polar.evaluators.base import Evidence
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.store.paths import RunPaths
from polar.types import CallProfile, Score, SessionResult, Stage, Strict

SCRIPT = [f"I write it. {WRITE}", "Done."]
AGENT = " ".join(agent_task().harness.options["argv"])
JUDGE_BY_PATCH = {"name": f"{__name__}:JudgeByPatch"}


class JudgeByPatch:
    """Leaves a file of its own in the workspace, as evaluators do."""

    Options: type[BaseModel] = Strict

    def __init__(self, options: Strict) -> None:
        pass

    async def evaluate(self, evidence: Evidence) -> Score:
        await evidence.runtime.put("out/verdict", b"secret")
        lines = evidence.patch.read_text().splitlines() if evidence.patch else []
        return Score(reward=1.0 if "+hello" in lines else 0.0)


class JudgeByFolder(JudgeByPatch):
    """Whether a program with another working folder finds the evaluator's."""

    async def evaluate(self, evidence: Evidence) -> Score:
        assert evidence.logs is not None
        found = await asyncio.create_subprocess_exec("test", "-d", str(evidence.logs), cwd="/")
        return Score(reward=1.0 if await found.wait() == 0 else 0.0)


class LoggingHarness:
    """A shell harness that keeps a diary in its home, with its key in it."""

    Options: type[BaseModel] = Strict
    name = "logging"
    version = "1"

    def __init__(self, options: Strict) -> None:
        pass

    def requirements(self) -> tuple[NpmPack, ...]:
        return ()

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return ("sh",)

    def launch(self, context: HarnessContext) -> Launch:
        env = {
            "OPENAI_BASE_URL": f"{context.slot.base_url}/v1",
            "OPENAI_API_KEY": context.slot.key,
            "POLAR_MODEL": context.slot.model,
            "POLAR_INSTRUCTION": context.instruction,
        }
        script = f'mkdir "$HOME/diary"; env >"$HOME/diary/day-1"; env; env >env.txt; {AGENT}'
        return Launch(("sh", "-c", script), env, logs=("diary", "crash"))

    def profile(self) -> CallProfile:
        return CallProfile()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    script = """
        git init -q -b main && echo 1 >file && git add file
        git -c user.name=a -c user.email=a@test commit -qm one
    """
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["sh", "-ec", script], cwd=folder, env=environment, check=True)
    return folder


def folder_of(workshop: Workshop, result: SessionResult) -> Path:
    return workshop.paths.session(result.session_id).root


async def test_from_a_repository_to_a_patch(workshop: Workshop, repository: Path) -> None:
    task = agent_task(
        workspace={"git": str(repository)},
        files={"laid-in.txt": "by the task"},
        prepare=["test -f laid-in.txt", "git log --oneline >log.txt"],
        keep={"patch": True, "artifacts": ["answer.txt", "out", "missing"]},
        evaluator=JUDGE_BY_PATCH,
    )
    await workshop.run(SCRIPT, [task])
    result = workshop.only
    assert (result.stage, result.failure) == (Stage.COMPLETED, None)
    assert result.score and result.score.reward == 1.0, "the evaluator reads the patch"
    folder = folder_of(workshop, result)
    patch = (folder / "patch.diff").read_text()
    assert [line for line in patch.splitlines() if line.startswith("+++")] == ["+++ b/answer.txt"]
    assert (folder / "artifacts" / "answer.txt").read_text() == "hello\n"
    assert result.kept == ("artifacts/answer.txt", "patch.diff")
    assert result.left_out == (
        "artifacts/out: the workspace has none",
        "artifacts/missing: the workspace has none",
    ), "what the evaluator writes is not the agent's"
    assert sorted(path.name for path in repository.iterdir()) == [".git", "file"]
    assert workshop.leftovers() == []


async def test_every_sample_has_a_workspace_of_its_own(workshop: Workshop, repository: Path) -> None:
    task = shell_task(
        f"cat file >>seen.txt; echo changed >file; {AGENT}",
        num_samples=3,
        workspace={"git": str(repository), "ref": "main"},
        keep={"artifacts": ["seen.txt"]},
    )
    await workshop.run(SCRIPT, [task])
    seen = [(folder_of(workshop, r) / "artifacts/seen.txt").read_text() for r in workshop.results.values()]
    assert seen == ["1\n"] * 3


async def test_harness_logs_are_kept_without_the_key(workshop: Workshop) -> None:
    task = agent_task(harness={"name": f"{__name__}:LoggingHarness"}, keep={"artifacts": ["env.txt"]})
    await workshop.run(SCRIPT, [task])
    result = workshop.only
    assert result.stage == Stage.COMPLETED, result.failure
    folder = folder_of(workshop, result)
    assert result.kept == ("artifacts/env.txt", "logs/harness-home/diary")
    diary = (folder / "logs/harness-home/diary/day-1").read_text()
    assert "OPENAI_BASE_URL=http" in diary and "OPENAI_API_KEY=***" in diary
    assert "OPENAI_API_KEY=***" in (folder / "logs/harness.stdout").read_text()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if b"sk-polar-" in path.read_bytes() and path.suffix != ".msgpack"] == []
    assert len([line for line in result.left_out if "session's key" in line]) == 3


class TestWhateverTheOutcome:
    KEEP: dict[str, Any] = {"patch": True, "artifacts": ["answer.txt"]}

    async def test_after_a_time_out(self, workshop: Workshop) -> None:
        task = shell_task("echo hello >answer.txt; sleep 600", keep=self.KEEP, budgets={"run_s": 3.0})
        await workshop.run([], [task])
        assert workshop.only.stage == Stage.TIMED_OUT
        assert workshop.only.kept == ("artifacts/answer.txt", "patch.diff")

    async def test_after_a_crash(self, workshop: Workshop) -> None:
        await workshop.run(SCRIPT, [shell_task(f"{AGENT}; exit 3", keep=self.KEEP)])
        assert workshop.only.failure and workshop.only.failure.type == "HarnessExit"
        assert workshop.only.kept == ("artifacts/answer.txt", "patch.diff")

    async def test_what_cannot_be_kept_is_no_failure(self, workshop: Workshop) -> None:
        await workshop.run(SCRIPT, [shell_task(f'{AGENT}; rm -rf "$HOME/.polar"', keep=self.KEEP)])
        result = workshop.only
        assert (result.stage, result.failure) == (Stage.COMPLETED, None)
        assert result.score and result.score.reward == 1.0
        assert result.kept == ("artifacts/answer.txt",)
        assert len(result.left_out) == 1 and result.left_out[0].startswith("patch.diff: git cannot compare")

    @pytest.mark.check
    async def test_a_git_that_never_ends_costs_the_patch_only(self, workshop: Workshop) -> None:
        """Git reads its ignore rules from a pipe without a writer; it is ended before the work is judged."""
        task = shell_task(f"{AGENT}; mkfifo .gitignore", keep=self.KEEP, budgets={"postrun_s": 8.0})
        await workshop.run(SCRIPT, [task])
        result = workshop.only
        assert (result.stage, result.failure) == (Stage.COMPLETED, None)
        assert result.score and result.score.reward == 1.0
        assert result.kept == ("artifacts/answer.txt",)
        assert result.left_out == ("patch.diff: not kept within 8 s",)


class TestFailuresOfInit:
    async def test_a_prepare_step(self, workshop: Workshop) -> None:
        await workshop.run([], [agent_task(prepare=["echo no compiler >&2; exit 2"])])
        failure = workshop.only.failure
        assert workshop.only.stage == Stage.FAILED and failure
        assert (failure.where, failure.agent) == ("prepare", False)
        assert failure.message.endswith("exited with code 2: no compiler")
        assert (folder_of(workshop, workshop.only) / "logs/prepare-1.stderr").read_text() == "no compiler\n"

    async def test_steps_that_take_longer_than_init_may(self, workshop: Workshop) -> None:
        await workshop.run([], [agent_task(prepare=["sleep 600"], budgets={"init_s": 1.0})])
        failure = workshop.only.failure
        assert workshop.only.stage == Stage.TIMED_OUT
        assert failure and (failure.where, failure.agent) == ("init", False)
        assert failure.message == "not set up within 1 s (budgets.init_s); under way: prepare"
        assert workshop.leftovers() == []

    async def test_a_workspace_that_is_not_there(self, workshop: Workshop, tmp_path: Path) -> None:
        await workshop.run([], [agent_task(workspace={"folder": str(tmp_path / "none")})])
        failure = workshop.only.failure
        assert failure and (failure.where, failure.type) == ("files", "WorkspaceError")

    async def test_no_git_for_a_patch(self, workshop: Workshop, tmp_path: Path, monkeypatch: Any) -> None:
        (tmp_path / "sh").symlink_to("/bin/sh")
        monkeypatch.setenv("PATH", str(tmp_path))
        await workshop.run([], [agent_task(keep={"patch": True})])
        failure = workshop.only.failure
        assert failure and failure.where == "prepare" and "needs git in the runtime" in failure.message


async def test_an_evaluators_folder_below_a_relative_run_folder(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `polar run` has it."""
    monkeypatch.chdir(tmp_path)
    workshop.paths = RunPaths.create(Path("polar-runs"))
    await workshop.run(SCRIPT, [agent_task(evaluator={"name": f"{__name__}:JudgeByFolder"})])
    assert workshop.only.score is not None and workshop.only.score.reward == 1.0
