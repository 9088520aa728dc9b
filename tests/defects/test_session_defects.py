"""What the life of a session must hold, each with the defect of published systems that it rules out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from workshop import WRITE, Workshop, agent_task, shell_task

from polar.data.source import TaskFileSource
from polar.evaluators.pytest_report import outcomes_of
from polar.node import Node
from polar.testing import ScriptedReply
from polar.types import Stage
from waiting import until

SCRIPT = [f"I write it. {WRITE}", "Done."]
AGENT = " ".join(agent_task().harness.options["argv"])


OURS = f"POLAR_OWNER={os.getpid()}."
"""Of this test's node: sessions of a test that runs beside it may have the same names."""


def processes_of(session_id: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if all(mark.encode() in environment for mark in (f"POLAR_SESSION={session_id}", OURS)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class TestTime:
    async def test_a_run_that_times_out_leaves_time_to_build_and_to_judge(self, workshop: Workshop) -> None:
        """20: one deadline for everything, so that after a time-out the traces were lost."""
        await workshop.run(SCRIPT, [shell_task(f"{AGENT}; sleep 600", budgets={"run_s": 6.0})])
        result = workshop.only
        assert result.stage == Stage.TIMED_OUT
        assert result.statistics.trainable_tokens > 0 and result.score and result.score.reward == 0.0

    async def test_waiting_in_a_queue_costs_no_budget(self, workshop: Workshop) -> None:
        """20: time in the queue and in READY counted as time of the run."""
        tasks = [shell_task(f"sleep 3; {AGENT}", task_id=name, budgets={"run_s": 8.0}) for name in "abc"]
        await workshop.run(SCRIPT, tasks, running=1, ready=3)
        results = list(workshop.results.values())
        assert {result.stage for result in results} == {Stage.COMPLETED}
        whole = max(sum(r.stage_s[stage] for stage in ("QUEUED", "READY", "RUNNING")) for r in results)
        assert whole > 8.0, "the last one, had waiting counted, would have timed out"

    async def test_nothing_of_a_harness_lives_on_when_it_is_judged(self, workshop: Workshop) -> None:
        """21: the process went on, edited files and called the model while it was graded."""
        spoiler = "setsid sh -c 'while :; do echo spoilt > answer.txt; sleep 0.05; done' & "
        check = {
            "name": "test_on_output",
            "options": {
                "command": "echo hello > answer.txt; sleep 0.5; cat answer.txt",
                "expect_pattern": "^hello$",
            },
        }
        task = shell_task(f"{AGENT}; {spoiler} exit 0", evaluator=check)
        await workshop.run(SCRIPT, [task])
        assert workshop.only.score and workshop.only.score.reward == 1.0
        assert processes_of(workshop.only.session_id) == []

    async def test_a_session_that_waits_for_its_turn_keeps_no_worker_from_others(self, workshop: Workshop) -> None:
        """25: READY held an INIT worker."""
        stages: dict[str, Stage] = {}

        class Watching:
            def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
                stages[session_id] = stage

        async def until_all_are_ready(node: Node, source: TaskFileSource) -> None:
            serving = asyncio.create_task(node.serve(source, watchers=(Watching(),)))
            await until(lambda: sorted(stage.value for stage in stages.values()) == ["READY", "READY", "RUNNING"])
            node.engine.release()  # pyright: ignore
            await serving

        tasks = [agent_task(task_id=name) for name in "abc"]
        script = [ScriptedReply(text=SCRIPT[0], block_after=1), "Done."]
        await workshop.run(script, tasks, during=until_all_are_ready, init=1, running=1, ready=2)
        assert {result.stage for result in workshop.results.values()} == {Stage.COMPLETED}


class TestTruth:
    async def test_failures_are_typed_and_logs_are_left(self, workshop: Workshop) -> None:
        """26: errors were free text, and logs went with the session's folder."""
        await workshop.run([], [shell_task("echo some words >&2; exit 4", task_id="t")])
        failure = workshop.only.failure
        assert workshop.only.stage == Stage.FAILED and failure
        assert (failure.where, failure.type, failure.agent) == ("harness", "HarnessExit", False)
        (log,) = workshop.paths.root.glob("sessions/t-0/logs/harness.stderr")
        assert "some words" in log.read_text() and workshop.leftovers() == []

    async def test_a_harness_that_reached_no_model_has_failed(self, workshop: Workshop) -> None:
        """33: no base URL, no calls, and the session was a success."""
        await workshop.run([], [shell_task("true")])
        failure = workshop.only.failure
        assert workshop.only.stage == Stage.FAILED and failure
        assert failure.type == "NoCalls" and not failure.agent

    async def test_a_crash_in_front_of_a_pipe_is_a_crash(self, workshop: Workshop) -> None:
        """32: behind `tee` a crash was a success."""
        await workshop.run([], [shell_task("no-such-program | tee out.log")])
        assert workshop.only.exit_code == 127
        assert workshop.only.failure and workshop.only.failure.type == "HarnessExit"

    async def test_the_agents_own_tests_are_not_those_that_run(self, workshop: Workshop) -> None:
        """27: what judged could be forged, for it stood where the agent worked."""
        options = {"command": "sh check.sh", "files": {"check.sh": "grep -q hello answer.txt"}}
        task = shell_task(
            f"echo 'exit 0' > check.sh; {AGENT}", evaluator={"name": "test_on_output", "options": options}
        )
        await workshop.run(["I do nothing."], [task])
        assert workshop.only.score and workshop.only.score.reward == 0.0

    async def test_a_broken_evaluator_gives_no_reward(self, workshop: Workshop) -> None:
        """27: an error of the evaluator was a reward."""
        broken = {"name": "test_on_output", "options": {"command": "no-such-checker"}}
        await workshop.run(SCRIPT, [agent_task(evaluator=broken)])
        failure = workshop.only.failure
        assert workshop.only.score is None and failure
        assert (failure.where, failure.agent) == ("evaluator", False)
        assert workshop.only.statistics.trainable_tokens > 0

    async def test_judging_does_not_hold_up_the_others(self, workshop: Workshop) -> None:
        """27: grading stood on the event loop, so that no other call went on."""
        slow = {"name": "test_on_output", "options": {"command": "while [ ! -e go ]; do sleep 0.05; done"}}
        ended: list[str] = []

        class Watching:
            def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
                if stage.final:
                    ended.append(session_id)

        async def release_when_the_other_is_done(node: Node, source: TaskFileSource) -> None:
            serving = asyncio.create_task(node.serve(source, watchers=(Watching(),)))
            await until(lambda: ended == ["quick-0"])

            def released() -> bool:
                """The evaluator's copy of the work may not be there yet."""
                for answer in node.paths.root.glob("sessions/slow-0/evaluator-place/*/answer.txt"):
                    (answer.parent / "go").touch()
                return serving.done()

            await until(released)
            await serving

        tasks = [agent_task(task_id="slow", evaluator=slow), agent_task(task_id="quick")]
        await workshop.run(SCRIPT, tasks, during=release_when_the_other_is_done, running=2, postrun=2)
        assert {result.reward for result in workshop.results.values()} == {1.0}

    def test_two_tests_of_nearly_the_same_name_are_two(self) -> None:
        """27: ids of tests were normalised, and two of them fell together."""
        printed = (
            "=== short test summary info ===\nPASSED t.py::test_a[1 - x]\nFAILED t.py::test_a[1 - y] - boom\n"
        )
        wanted = ["t.py::test_a[1 - x]", "t.py::test_a[1 - y]"]
        assert outcomes_of(printed, wanted) == {wanted[0]: "passed", wanted[1]: "failed"}
