"""Every session's traces are proven against its journal before anyone judges them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from workshop import WRITE, Workshop, agent_task

from polar.audit.certificate import certify
from polar.builders.drops import DropRules
from polar.builders.prefix_merging import PrefixMerging
from polar.store.journal import Journal
from polar.store.trajectories import read_trajectory
from polar.types import Call, Stage, Trajectory

SCRIPT = [f"I write it. {WRITE}", "Done."]


class Careless(PrefixMerging):
    """Builds well, and then changes one token of the context."""

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        trajectory = super().build(session_id, calls)
        (trace,) = trajectory.traces
        ids = trace.prompt_ids[:]
        ids[3] += 1
        altered = msgspec.structs.replace(trace, prompt_ids=ids)
        return msgspec.structs.replace(trajectory, traces=(altered,))


class Ungenerous(PrefixMerging):
    """Lists each call's trace a second time as context, with nothing to train on."""

    Options = DropRules

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        trajectory = super().build(session_id, calls)
        (trace,) = trajectory.traces
        nothing = msgspec.structs.replace(
            trace,
            loss_mask=type(trace.loss_mask)("b", bytes(len(trace.loss_mask))),
            logprobs=type(trace.logprobs)("f", bytes(4 * len(trace.logprobs))),
        )
        return msgspec.structs.replace(trajectory, traces=(trace, nothing))


async def test_a_result_carries_the_certificate_of_its_traces(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [agent_task(task_id="t")])
    result = workshop.only
    assert result.certificate is not None and result.certificate.exact
    assert result.certificate.trainable_tokens == result.statistics.trainable_tokens > 0
    async with await Journal.open(workshop.paths.journal, read_only=True) as journal:
        calls, kept = await journal.calls("t-0"), await journal.result("t-0")
    stored = read_trajectory(workshop.paths.root / (result.traces or ""))
    assert certify(calls, stored) == result.certificate, "the same from disk, with the reward on it"
    assert kept == result


async def test_traces_that_are_not_exact_fail_the_session_and_are_kept(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [agent_task(task_id="t", builder={"name": f"{__name__}:Careless"})])
    result = workshop.only
    assert result.stage == Stage.FAILED and result.failure
    assert (result.failure.where, result.failure.type, result.failure.agent) == ("builder", "NotExact", False)
    assert "token 3 of the sequence: context" in result.failure.message
    assert result.certificate and not result.certificate.exact
    assert result.certificate.reasons == {"context": 1}
    assert result.score is None, "what cannot be trained on is not judged"
    assert result.traces is not None


async def test_only_traces_with_something_to_train_on_are_rewarded(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [agent_task(task_id="t", builder={"name": f"{__name__}:Ungenerous"})])
    assert workshop.only.failure is None
    trajectory = workshop.trajectories["t-0"]
    assert trajectory is not None
    assert [trace.reward for trace in trajectory.traces] == [1.0, None]


async def test_a_session_without_calls_has_a_certificate_of_nothing(workshop: Workshop) -> None:
    harness = {"name": "shell", "options": {"command": "true"}}
    await workshop.run([], [agent_task(task_id="t", harness=harness)])
    assert workshop.only.failure and workshop.only.failure.type == "NoCalls"
    assert workshop.only.certificate and workshop.only.certificate.calls == 0
