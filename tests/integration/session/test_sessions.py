"""Whole sessions through a real node: from a task to a scored, token-faithful trajectory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from workshop import WRITE, Workshop, agent_task, shell_task

from polar.data.source import TaskFileSource
from polar.evaluators.base import Evidence
from polar.node import Node
from polar.store.seal import seal_of
from polar.store.trajectories import read_trajectory
from polar.testing import ScriptedReply
from polar.types import Score, SessionResult, Stage
from waiting import until

SCRIPT = [f"I write it. {WRITE}", "Done."]


OURS = f"POLAR_OWNER={os.getpid()}.".encode()


def processes_with(marker: str) -> list[int]:
    """Living processes, not zombies, of this test's node, that carry a marker in their environment. Sessions of a
    test that runs beside it may have the same names."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                alive = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
                environment = (entry / "environ").read_bytes()
                if alive and marker.encode() in environment and OURS in environment:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def test_a_session_from_task_to_trace(workshop: Workshop) -> None:
    node = await workshop.run(SCRIPT, [agent_task(task_id="t")])
    result = workshop.only
    assert (result.stage, result.failure, result.exit_code) == (Stage.COMPLETED, None, 0)
    assert result.score and result.score.reward == 1.0
    assert result.statistics.merge_rate == 1.0 and result.statistics.append_only_pairs == 1
    assert set(result.stage_s) == {"QUEUED", "INIT", "READY", "RUNNING", "POSTRUN"}
    assert result.versions["harness"].startswith("shell")

    trajectory = read_trajectory(workshop.paths.root / (result.traces or ""))
    (trace,) = trajectory.traces
    assert trace.reward == 1.0
    sampled = [token for seen in node.engine.requests for token in seen.completion_ids]  # type: ignore[attr-defined]
    trained = [t for t, bit in zip(trace.response_ids, trace.loss_mask, strict=True) if bit]
    assert trained == sampled, "what is trained on is what was sampled, each token once"
    assert workshop.leftovers() == []


async def test_a_group_runs_side_by_side(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [agent_task(task_id="a", num_samples=5), agent_task(task_id="b")], running=3)
    assert sorted(workshop.results) == ["a-0", "a-1", "a-2", "a-3", "a-4", "b-0"]
    assert {r.stage for r in workshop.results.values()} == {Stage.COMPLETED}


async def test_task_files_stand_in_the_workspace(workshop: Workshop) -> None:
    agent = agent_task().harness.options["argv"]
    task = shell_task(
        f"cat sub/in.txt > answer.txt; {agent[0]} {agent[1]}; exit 0", files={"sub/in.txt": "hello\n"}
    )
    await workshop.run(["Nothing to do."], [task])
    assert workshop.only.reward == 1.0


async def test_a_harness_that_never_asked_the_model_earns_nothing(workshop: Workshop) -> None:
    """Its work passes the test, and still: what made it was not the policy."""
    await workshop.run([], [shell_task("echo hello > answer.txt; exit 0")])
    result = workshop.only
    assert result.failure and (result.failure.type, result.failure.agent) == ("NoCalls", False)
    assert result.score is None or result.score.reward is None
    assert (result.reward, result.trainable, result.untrainable_reason) == (None, False, "infrastructure")


async def test_traces_and_result_say_whose_they_are(workshop: Workshop) -> None:
    tasks = [agent_task(task_id="t", num_samples=2), agent_task(task_id="u", group_id="batch")]
    await workshop.run(SCRIPT, tasks)
    for session_id, group, sample in (("t-0", "t", 0), ("t-1", "t", 1), ("u-0", "batch", 0)):
        result = workshop.results[session_id]
        assert (result.group_id, result.trainable, result.untrainable_reason) == (group, True, "")
        (trace,) = read_trajectory(workshop.paths.root / (result.traces or "")).traces
        assert (trace.task_id, trace.group_id) == (result.task_id, group)
        assert (trace.sample, trace.attempt, trace.failure) == (sample, 1, "")


class TestFailures:
    async def test_a_failure_after_the_verdict_takes_the_reward_back(
        self, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Teardown comes last, and a node that cannot clear up has not run the session as it should."""

        async def cannot(_: object) -> None:
            raise OSError("no space left")

        monkeypatch.setattr("polar.session.pipeline._tear_down", cannot)
        await workshop.run(SCRIPT, [agent_task(task_id="t")])
        result = workshop.only
        assert result.failure and (result.failure.where, result.failure.agent) == ("teardown", False)
        assert result.score is None or result.score.reward is None
        reported, written = workshop.trajectories["t-0"], read_trajectory(workshop.paths.session("t-0").traces)
        assert reported == written
        assert [(trace.reward, trace.failure) for trace in written.traces] == [(None, "teardown: OSError")]

    async def test_what_the_policy_brought_about_is_trained_on_and_told_on_its_traces(
        self, workshop: Workshop
    ) -> None:
        agent = agent_task().harness.options["argv"]
        await workshop.run(SCRIPT, [shell_task(f"{agent[0]} {agent[1]}; exit 3", task_id="t")])
        assert workshop.only.trainable and workshop.only.reward is not None
        (trace,) = read_trajectory(workshop.paths.session("t-0").traces).traces
        assert trace.failure == "harness: HarnessExit"
        assert trace.reward == workshop.only.reward

    async def test_a_broken_command_fails_that_session_only(self, workshop: Workshop) -> None:
        tasks = [shell_task("no-such-program", task_id="broken"), agent_task(task_id="good")]
        await workshop.run(SCRIPT, tasks)
        broken, good = workshop.results["broken-0"], workshop.results["good-0"]
        assert broken.stage == Stage.FAILED and broken.failure
        assert (broken.failure.where, broken.failure.type, broken.failure.agent) == (
            "harness",
            "HarnessExit",
            False,
        )
        assert "no-such-program" in broken.failure.message
        assert good.stage == Stage.COMPLETED

    async def test_a_harness_that_is_not_there(self, workshop: Workshop) -> None:
        task = agent_task(harness={"name": "shell", "options": {"argv": ["/no/such/harness"]}})
        await workshop.run([], [task])
        assert workshop.only.stage == Stage.FAILED
        assert workshop.only.failure and "/no/such/harness" in workshop.only.failure.message

    async def test_a_crash_after_calls_is_the_policys_and_keeps_its_traces(self, workshop: Workshop) -> None:
        agent = agent_task().harness.options["argv"]
        task = shell_task(f"{agent[0]} {agent[1]}; exit 3")
        await workshop.run(SCRIPT, [task])
        failure = workshop.only.failure
        assert failure and (failure.type, failure.agent) == ("HarnessExit", True)
        assert workshop.only.score and workshop.only.score.reward == 0.0
        assert workshop.only.statistics.trainable_tokens > 0

    async def test_a_time_out_keeps_its_partial_traces(self, workshop: Workshop) -> None:
        agent = agent_task().harness.options["argv"]
        task = shell_task(f"{agent[0]} {agent[1]}; sleep 600 & setsid sleep 601; wait", budgets={"run_s": 6.0})
        await workshop.run(SCRIPT, [task])
        result = workshop.only
        assert (result.stage, result.exit_code) == (Stage.TIMED_OUT, None)
        assert result.failure and (result.failure.where, result.failure.agent) == ("run", True)
        assert result.statistics.calls == 2 and result.statistics.trainable_tokens > 0
        assert result.score and result.score.reward == 0.0
        assert processes_with("POLAR_SESSION=" + result.session_id) == []
        assert workshop.leftovers() == []

    async def test_a_time_out_in_the_middle_of_a_reply(self, workshop: Workshop) -> None:
        script = [ScriptedReply(text=WRITE), ScriptedReply(text="I never finish.", block_after=3)]
        await workshop.run(script, [agent_task(budgets={"run_s": 6.0})])
        statistics = workshop.only.statistics
        assert workshop.only.stage == Stage.TIMED_OUT
        assert statistics.dropped == {"aborted": 3}
        assert statistics.sampled_tokens == statistics.trainable_tokens + 3

    async def test_a_killed_harness(self, workshop: Workshop) -> None:
        async def kill_when_blocked(node: Node, source: TaskFileSource) -> None:
            serving = asyncio.create_task(node.serve(source))
            engine: Any = node.engine
            await until(lambda: engine.active)
            for pid in processes_with("POLAR_SESSION=t-0"):
                os.kill(pid, signal.SIGKILL)
            await serving

        await workshop.run(
            [ScriptedReply(text="x", block_after=1)], [agent_task(task_id="t")], during=kill_when_blocked
        )
        failure = workshop.only.failure
        assert workshop.only.stage == Stage.FAILED and failure
        assert "signal 9" in failure.message and not failure.agent
        assert workshop.only.statistics.dropped == {"aborted": 1}

    async def test_the_engines_error_wins_over_the_exit_code(self, workshop: Workshop) -> None:
        await workshop.run([ScriptedReply(error="GPU fell off the bus")], [agent_task()])
        failure = workshop.only.failure
        assert failure and (failure.where, failure.agent) == ("engine", False)
        assert "GPU fell off the bus" in failure.message

    async def test_a_set_up_that_takes_too_long(self, workshop: Workshop) -> None:
        await workshop.run([], [agent_task(budgets={"init_s": 1e-9})])
        assert workshop.only.stage == Stage.TIMED_OUT
        assert workshop.only.failure and workshop.only.failure.where == "init"
        assert workshop.leftovers() == []

    async def test_a_verdict_that_takes_too_long(self, workshop: Workshop) -> None:
        slow = {"name": "test_on_output", "options": {"command": "sleep 600", "timeout_s": 600}}
        await workshop.run(SCRIPT, [agent_task(evaluator=slow, budgets={"postrun_s": 4.0})])
        assert workshop.only.stage == Stage.FAILED
        assert workshop.only.failure and workshop.only.failure.where == "postrun"
        assert workshop.only.statistics.trainable_tokens > 0, "the traces are kept without a verdict"
        assert processes_with("POLAR_SESSION=" + workshop.only.session_id) == []

    async def test_files_that_would_leave_the_workspace(self, workshop: Workshop) -> None:
        await workshop.run([], [agent_task(files={"../../outside.txt": "x"})])
        assert workshop.only.failure and workshop.only.failure.where == "files"
        assert not list(workshop.paths.root.rglob("outside.txt"))

    async def test_an_evaluator_that_breaks_is_no_reward(self, workshop: Workshop) -> None:
        await workshop.run(SCRIPT, [agent_task(evaluator={"name": f"{__name__}:Broken"})])
        assert workshop.only.failure and workshop.only.failure.where == "evaluator"
        assert workshop.only.score is None

    async def test_a_builder_that_breaks(self, workshop: Workshop) -> None:
        await workshop.run(SCRIPT, [agent_task(builder={"name": f"{__name__}:Broken"})])
        assert workshop.only.failure and workshop.only.failure.where == "builder"
        assert workshop.only.traces is None

    @pytest.mark.parametrize("rewards", [(1.0, 0.0), (0.25,)])
    async def test_rewards_trace_by_trace(self, workshop: Workshop, rewards: tuple[float, ...]) -> None:
        task = agent_task(evaluator={"name": f"{__name__}:PerTrace", "options": {"rewards": rewards}})
        await workshop.run(SCRIPT, [task])
        if len(rewards) == 1:
            (trajectory,) = workshop.trajectories.values()
            assert trajectory and trajectory.traces[0].reward == 0.25
        else:
            assert workshop.only.failure and workshop.only.failure.type == "WrongRewards"

    async def test_rewards_call_by_call(self, workshop: Workshop) -> None:
        """They are on the result, in the journal and under its seal."""
        task = agent_task(evaluator={"name": f"{__name__}:PerCall", "options": {"rewards": [0.25, -1.0]}})

        async def look(node: Node, source: TaskFileSource) -> None:
            await node.serve(source)
            assert await node.journal.result(workshop.only.session_id) == workshop.only

        await workshop.run(SCRIPT, [task], during=look)
        (trajectory,) = workshop.trajectories.values()
        assert trajectory and workshop.only.score
        first, second = (span.call_id for trace in trajectory.traces for span in trace.spans)
        assert workshop.only.score.call_rewards == {first: 0.25, second: -1.0}
        assert workshop.only.seal != seal_of(without_call_rewards(workshop.only), task)

    async def test_a_reward_for_a_call_that_is_not_there_is_the_evaluators_failure(
        self, workshop: Workshop
    ) -> None:
        task = agent_task(evaluator={"name": f"{__name__}:PerCall", "options": {"rewards": [1.0], "id": "nobody"}})
        await workshop.run(SCRIPT, [task])
        failure = workshop.only.failure
        assert failure and (failure.where, failure.type, failure.agent) == ("evaluator", "WrongRewards", False)
        assert "'nobody', which is no call of this session" in failure.message


async def test_a_late_call_after_sealing_is_not_recorded(workshop: Workshop) -> None:
    """A daemon of the agent that outlives it is killed before the verdict, and its key is dead."""
    agent = agent_task().harness.options["argv"]
    task = shell_task(f"{agent[0]} {agent[1]}; (setsid sh -c 'sleep 30; {agent[0]} {agent[1]}' &) ; exit 0")
    await workshop.run(SCRIPT, [task])
    assert workshop.only.stage == Stage.COMPLETED
    assert workshop.only.statistics.calls == 2
    assert processes_with("POLAR_SESSION=" + workshop.only.session_id) == []


async def test_cancelling_reports_every_session_and_leaves_nothing(workshop: Workshop) -> None:
    async def cancel_soon(node: Node, source: TaskFileSource) -> None:
        serving = asyncio.create_task(node.serve(source))
        engine: Any = node.engine
        await until(lambda: engine.active >= 2)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    tasks = [agent_task(task_id="t", num_samples=6)]
    await workshop.run(
        [ScriptedReply(text=WRITE, block_after=2)], tasks, during=cancel_soon, running=2, ready=1, init=1
    )
    assert {r.stage for r in workshop.results.values()} == {Stage.CANCELLED}
    assert len(workshop.results) >= 3, "running, ready and starting sessions all report"
    assert any(r.statistics.dropped == {"aborted": 2} for r in workshop.results.values())
    assert processes_with("POLAR_SESSION=t-") == []
    assert workshop.leftovers() == []


async def test_stages_and_results_are_in_the_journal(workshop: Workshop) -> None:
    async def look(node: Node, source: TaskFileSource) -> None:
        await node.serve(source)
        stages = [stage for stage, _ in await node.journal.stages("t-0")]
        assert [s.value for s in stages] == ["QUEUED", "INIT", "READY", "RUNNING", "POSTRUN", "COMPLETED"]
        result = await node.journal.result("t-0")
        assert result == workshop.only
        assert json.loads(result.model_dump_json())["stage"] == "COMPLETED"

    await workshop.run(SCRIPT, [agent_task(task_id="t")], during=look)


class _Options:
    @staticmethod
    def model_validate(options: dict[str, Any]) -> dict[str, Any]:
        return options


class Broken:
    """A plug-in that raises whatever it is asked."""

    Options = _Options

    def __init__(self, options: Any) -> None:
        pass

    def build(self, *_: Any) -> None:
        raise RuntimeError("broken on purpose")

    async def evaluate(self, _: Any) -> None:
        raise RuntimeError("broken on purpose")


class PerTrace:
    Options = _Options

    def __init__(self, options: Any) -> None:
        self._rewards = tuple(options["rewards"])

    async def evaluate(self, _: Any) -> Any:
        return Score(reward=1.0, trace_rewards=self._rewards)


class PerCall:
    """Judges the first calls, one after the other."""

    Options = _Options

    def __init__(self, options: Any) -> None:
        self._options = options

    def evaluate(self, evidence: Evidence) -> Score:
        ids = [self._options.get("id", call.call_id) for call in evidence.calls]
        return Score(reward=1.0, call_rewards=dict(zip(ids, self._options["rewards"], strict=False)))


def without_call_rewards(result: SessionResult) -> SessionResult:
    assert result.score is not None
    return result.model_copy(update={"score": result.score.model_copy(update={"call_rewards": None})})


@pytest.mark.parametrize(
    ("budgets", "name"), [({"max_calls": 1}, "max_calls"), ({"max_tokens": 40}, "max_tokens")]
)
async def test_a_budget_ends_a_session_cleanly(workshop: Workshop, budgets: dict[str, int], name: str) -> None:
    script = [f"I write it. {WRITE}"] + ["Again. " + WRITE] * 5
    await workshop.run(script, [agent_task(budgets=budgets)])
    result = workshop.only
    assert (result.stage, result.failure, result.ended_by) == (Stage.COMPLETED, None, name)
    assert result.score and result.score.reward == 1.0, "what was done by then is judged"
    assert result.statistics.trainable_tokens > 0


async def test_a_session_within_its_budget_is_ended_by_nothing(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [agent_task(budgets={"max_calls": 2, "max_tokens": 1000})])
    assert (workshop.only.stage, workshop.only.ended_by) == (Stage.COMPLETED, "")


async def test_a_harness_that_is_started_again_asks_anew(workshop: Workshop) -> None:
    """The first run got its replies, so the second one's are other samples; each stands once."""
    agent = agent_task().harness.options["argv"]
    command = f"{agent[0]} {agent[1]} && {agent[0]} {agent[1]}"
    await workshop.run([*SCRIPT, "I know that already.", "never"], [shell_task(command, task_id="t")])
    result, trajectory = workshop.only, workshop.trajectories["t-0"]
    assert result.stage == Stage.COMPLETED and trajectory is not None
    assert result.statistics.calls == 3 and result.statistics.breaks == {"resampled": 1}
    assert result.statistics.sampled_tokens == result.statistics.trainable_tokens


async def test_a_harness_that_is_killed_in_a_reply_and_started_again_gets_that_reply(workshop: Workshop) -> None:
    agent = agent_task().harness.options["argv"]
    script = [ScriptedReply(text=SCRIPT[0], block_after=2), "Done."]
    asked, killed = workshop.paths.root / "asked", workshop.paths.root / "killed"
    workshop.gateway = {"linger_s": 300}

    async def during(node: Node, source: TaskFileSource) -> None:
        serving = asyncio.create_task(node.serve(source))
        await until(lambda: node.engine.requests)  # type: ignore[attr-defined]
        asked.touch()
        await until(killed.exists)
        node.engine.release()  # type: ignore[attr-defined]
        await serving

    run_agent = f"{agent[0]} {agent[1]}"
    until_asked = f"until [ -e {asked} ]; do sleep 0.05; done"
    command = f"{run_agent} & {until_asked}; kill -9 $!; wait $!; touch {killed}; {run_agent}"
    node = await workshop.run(script, [shell_task(command, task_id="t")], during=during)
    result = workshop.only
    assert (result.stage, result.statistics.calls, result.statistics.breaks) == (Stage.COMPLETED, 2, {})
    assert len(node.engine.requests) == 2  # type: ignore[attr-defined]
    assert result.statistics.sampled_tokens == result.statistics.trainable_tokens
    assert result.score and result.score.reward == 1.0
