"""One end, one verdict, in every runtime: signals, exit codes, limits, and what an agent leaves behind."""

from __future__ import annotations

import pytest
from small_agent import CONTAINED, RUNTIMES, task_in
from workshop import Workshop, agent_task

from polar.types import Stage

SCRIPT = ["Done."]
ENDS = {
    "killed": ("kill -9 $$", "UnknownSignal", False),
    "killed-in-sh": ("sh -c 'kill -9 $$; :'; exit $?", "UnknownSignal", False),
    "exit-137": ("exit 137", "UnknownSignal", False),
    "terminated": ("kill -TERM $$", "UnknownSignal", False),
    "crashed": ("kill -SEGV $$", "HarnessCrashed", True),
    "crashed-in-sh": ("sh -c 'kill -SEGV $$; :'; exit $?", "HarnessCrashed", True),
    "exit-3": ("exit 3", "HarnessExit", True),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_ends_of_a_harness(workshop: Workshop, runtime: str) -> None:
    tasks = [await task_in(runtime, end, task_id=name) for name, (end, _, _) in ENDS.items()]
    await workshop.run(SCRIPT, tasks)
    verdicts = {
        result.task_id: (result.failure.type, result.failure.agent)
        for result in workshop.results.values()
        if result.failure is not None
    }
    assert verdicts == {name: (kind, policy) for name, (_, kind, policy) in ENDS.items()}
    for result in workshop.results.values():
        assert result.failure and result.stage == Stage.FAILED
        reward = result.score.reward if result.score else None
        assert reward == (0.0 if result.failure.agent else None)


@pytest.mark.check
@pytest.mark.parametrize("runtime", CONTAINED)
@pytest.mark.parametrize("end", ["exec tail /dev/zero", "tail /dev/zero; exit $?"])
async def test_the_memory_limit(workshop: Workshop, runtime: str, end: str) -> None:
    await workshop.run(SCRIPT, [await task_in(runtime, end, limits={"memory_bytes": "96MiB"})])
    failure = workshop.only.failure
    assert failure and (failure.type, failure.agent) == ("MemoryLimit", True), failure
    assert workshop.only.score and workshop.only.score.reward == 0.0


TESTED = {
    "name": "test_on_output",
    "options": {
        "command": "sh tests/check.sh",
        "files": {"tests/check.sh": "cat answer.txt | grep -q '^hello$'\n"},
    },
}
LEFT_BEHIND = {
    "right": (":", 1.0),
    "wrong": ("echo no > answer.txt", 0.0),
    "none": ("rm answer.txt", 0.0),
    "pipe": ("rm answer.txt; mkfifo answer.txt", 0.0),
    "pipe-elsewhere": ('mkfifo "$HOME/p"; ln -sf "$HOME/p" answer.txt', 0.0),
    "read-only": ("chmod 555 .", 1.0),
    "read-only-wrong": ("echo no > answer.txt; chmod 555 .", 0.0),
    "test-is-a-folder": ("echo no > answer.txt; mkdir -p tests/check.sh/deep; chmod 555 tests/check.sh", 0.0),
    "test-is-a-pipe": ("echo no > answer.txt; mkdir tests; mkfifo tests/check.sh", 0.0),
    "test-leads-outside": ("echo no > answer.txt; mkdir tests; ln -s /etc/passwd tests/check.sh", 0.0),
    "tests-lead-outside": ("echo no > answer.txt; ln -s /etc tests", 0.0),
    "tests-are-a-file": ("echo no > answer.txt; echo > tests", 0.0),
    "tests-are-read-only": ("echo no > answer.txt; mkdir tests; chmod 000 tests", 0.0),
    "no-workspace": ('here=$PWD; cd /; rm -rf "$here" 2>/dev/null', 0.0),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_what_an_agent_leaves_does_not_void_its_zero(workshop: Workshop, runtime: str) -> None:
    tasks = [
        await task_in(runtime, f"{end}; exit 0", task_id=name, evaluator=TESTED)
        for name, (end, _) in LEFT_BEHIND.items()
    ]
    await workshop.run(SCRIPT, tasks)
    rewards = {
        result.task_id: (
            result.score.reward if result.score else None,
            result.failure is None or result.failure.agent,
        )
        for result in workshop.results.values()
    }
    assert rewards == {name: (reward, True) for name, (_, reward) in LEFT_BEHIND.items()}
    took_s = {result.task_id: result.stage_s["POSTRUN"] for result in workshop.results.values()}
    assert max(took_s.values()) < agent_task().budgets.postrun_s * 0.8, "none had to be broken off"
