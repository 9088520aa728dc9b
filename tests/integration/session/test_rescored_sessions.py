"""Stored sessions are scored again: from a kept copy of the workspace, from a kept patch, from the transcript."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from small_agent import CONTAINED, task_in
from workshop import CHECK, WRITE, Workshop, agent_task, shell_task

from polar.errors import ConfigError
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.runs.rescore import Rescored, RescorePlan, rescore
from polar.runs.stored import StoredRun, read_run_async
from polar.store.later_scores import LaterScoreUnreadable, read_scores
from polar.types import Score, Strict, TaskRequest

SCRIPT = [f"I write it. {WRITE}", "Done."]
HERE = __name__


def transcript(evidence: Evidence, word: str = "Done") -> float:
    return float(word in evidence.answer)


def printed(evidence: Evidence) -> float:
    assert evidence.output.stdout is not None
    return float(evidence.output.stdout_tail == evidence.output.stdout.read_text() == "Done.")


async def files(evidence: Evidence) -> Score:
    """All that the restored workspace holds; the home and programs are the base's."""
    names = ["answer.txt", "given.txt", "gone.txt", "made-by-prepare"]
    found = {name: 1.0 for name in names if await _has(evidence, name)}
    return Score(reward=1.0, metrics=found)


async def _has(evidence: Evidence, name: str) -> bool:
    try:
        await evidence.runtime.get(name)
    except FileNotFoundError:
        return False
    return True


def undecided(evidence: Evidence) -> Score:
    return Score(reward=None, reasons=("cannot tell",))


async def unusable(evidence: Evidence) -> float:
    await evidence.runtime.get("no-such-file")
    return 1.0


class OwnAgain:
    """Judges in a runtime of its own, and keeps a file."""

    Options = Strict

    def __init__(self, options: Strict) -> None:
        pass

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest:
        return RuntimeRequest()

    async def evaluate(self, evidence: Evidence) -> float:
        assert evidence.own_runtime is not None and evidence.logs is not None
        (evidence.logs / "verdict.txt").write_text("good")
        return float(await evidence.own_runtime.get("given.txt") == b"given")


async def stored(workshop: Workshop, *tasks: TaskRequest) -> StoredRun:
    await workshop.run(SCRIPT, tasks)
    return await read_run_async(workshop.paths)


async def again(run: StoredRun, evaluator: str | None, write: bool = False, **options: Any) -> list[Rescored]:
    name = f"{HERE}:{evaluator}" if evaluator else None
    return await rescore(run, list(run), RescorePlan(name, options, write=write))


def changing_task(**fields: Any) -> TaskRequest:
    """Changes, adds and removes files in a workspace that its task prepared."""
    agent = " ".join(agent_task().harness.options["argv"])
    return shell_task(
        f"rm gone.txt; {agent}",
        task_id="t",
        files={"given.txt": "given", "gone.txt": "gone"},
        prepare=["touch made-by-prepare"],
        **fields,
    )


@pytest.mark.parametrize("keep", [{"artifacts": ["."]}, {"patch": True}])
async def test_the_workspace_is_restored_as_the_agent_left_it(workshop: Workshop, keep: dict[str, Any]) -> None:
    run = await stored(workshop, changing_task(keep=keep))
    (one,) = await again(run, "files")
    assert one.later and one.later.failure is None, one.later
    assert one.later.score and set(one.later.score.metrics) == {"answer.txt", "given.txt", "made-by-prepare"}
    assert not workshop.paths.rescores.exists(), "nothing is stored unless asked for"


async def test_the_same_evaluator_with_other_options(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task(keep={"artifacts": ["."]}))
    (same,) = await again(run, None)
    assert (same.before, same.after, same.changed) == (1.0, 1.0, False)
    (other,) = await again(run, None, expect_pattern="^bye$")
    assert (other.before, other.after, other.changed) == (1.0, 0.0, True)
    assert other.later and other.later.evaluator.options == CHECK["options"] | {"expect_pattern": "^bye$"}  # pyright: ignore


async def test_a_transcript_needs_no_workspace(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task())
    assert [one.after for one in await again(run, "transcript")] == [1.0]
    assert [one.after for one in await again(run, "transcript", word="nothing")] == [0.0]
    assert [one.after for one in await again(run, "printed")] == [1.0]


async def test_a_workspace_that_was_not_kept_is_named(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task())
    (one,) = await again(run, "files")
    assert one.failed and one.after is None and one.later and one.later.failure
    assert "keep.artifacts = ['.'] or keep.patch = true" in one.later.failure.message


async def test_none_stays_apart_from_zero(workshop: Workshop) -> None:
    failed_check = {"name": "test_on_output", "options": {"command": "false"}}
    run = await stored(workshop, agent_task(evaluator=failed_check))
    (one,) = await again(run, "undecided")
    assert (one.before, one.after, one.changed, one.failed) == (0.0, None, True, False)


async def test_what_the_agent_left_unusable_scores_zero(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task(keep={"artifacts": ["."]}))
    (one,) = await again(run, "unusable")
    assert one.after == 0.0 and one.later and one.later.failure and one.later.failure.agent


async def test_a_session_whose_evaluator_broke_is_judged_now_but_no_failed_harness(workshop: Workshop) -> None:
    missing = {"name": "test_on_output", "options": {"command": "no-such-program"}}
    agent = " ".join(agent_task().harness.options["argv"])
    tasks = agent_task(task_id="broken", evaluator=missing), shell_task(f"{agent}; exit 3", task_id="failed")
    run = await stored(workshop, *tasks)
    by_task = {one.session.task.task_id: one for one in await again(run, "transcript")}
    assert (by_task["broken"].before, by_task["broken"].after) == (None, 1.0)
    assert by_task["failed"].later is None and "harness: HarnessExit" in by_task["failed"].skipped


async def test_scores_are_stored_beside_the_result_and_sealed(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task(task_id="t", files={"given.txt": "given"}))
    before = run["t-0"].result
    await again(run, "OwnAgain", write=True)
    await again(run, "transcript", write=True, word="nothing")
    now = await read_run_async(workshop.paths)
    assert now["t-0"].result == before and before
    own, words = await asyncio.to_thread(lambda: now["t-0"].later_scores)
    assert (own.reward, words.reward) == (1.0, 0.0) and own.result_seal == before.seal
    assert words.evaluator.options == {"word": "nothing"}
    (verdict,) = workshop.paths.rescores.glob("*/sessions/t-0/logs/evaluator/verdict.txt")
    assert verdict.read_text() == "good"
    assert not list(workshop.paths.rescores.rglob("*place")) and not list(workshop.paths.rescores.glob("*/owner"))


async def test_a_changed_score_is_noticed(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task())
    await again(run, "transcript", write=True, word="nothing")
    (path,) = workshop.paths.rescores.glob("*/scores.jsonl")
    path.write_text(path.read_text().replace('"reward":0.0', '"reward":1.0'))
    with pytest.raises(LaterScoreUnreadable, match=r"scores\.jsonl:1 was changed after it was sealed"):
        read_scores(workshop.paths)


async def test_wrong_options_are_refused_before_anything_runs(workshop: Workshop) -> None:
    run = await stored(workshop, agent_task())
    with pytest.raises(ConfigError, match="evaluator.options.colour: unknown option"):
        await again(run, "transcript", colour="red")
    assert not workshop.paths.rescores.exists()


@pytest.mark.check
@pytest.mark.parametrize("keep", [{"artifacts": ["."]}, {"patch": True}])
@pytest.mark.parametrize("runtime", CONTAINED)
async def test_in_every_runtime(workshop: Workshop, runtime: str, keep: dict[str, Any]) -> None:
    task = await task_in(
        runtime,
        end="rm gone.txt",
        task_id="t",
        files={"given.txt": "given", "gone.txt": "gone"},
        prepare=["touch made-by-prepare"],
        keep=keep,
    )
    run = await stored(workshop, task)
    assert run["t-0"].result and run["t-0"].result.reward == 1.0, run["t-0"].result
    (one,) = await again(run, "files")
    assert one.later and one.later.score, one.later
    assert set(one.later.score.metrics) == {"answer.txt", "given.txt", "made-by-prepare"}
    (own,) = await again(run, "OwnAgain")
    assert own.after == 1.0, own.later
