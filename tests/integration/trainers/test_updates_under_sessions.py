"""Weight updates under the sessions of a real service, whose engine does not report versions: what becomes of the
tokens of a call that spans an update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from served_node import WRITE, ServedNode, Service, agent_task, results_of

from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.trainers.weights import WeightUpdates
from polar.types import SessionResult, SessionUpload
from waiting import hang_limit, until


@pytest.fixture
async def patient(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(smollm2, tmp_path, lease_beats=60) as made:
        made.first_reply = ScriptedReply(text=WRITE, block_after=2)
        yield made


class HeldScript:
    """The target of a scripted engine, whose blocked replies stand for held ones."""

    def __init__(self, served: ServedNode) -> None:
        self._served = served
        self.generating: list[int] = []
        """Replies under way at each load."""

    async def hold(self) -> None: ...

    async def load(self, weights: Any) -> None:
        self.generating.append(self._served.engine.active)

    async def release(self) -> None:
        self._served.engine.release()

    async def score(self, ids: Sequence[int]) -> list[float]:
        raise AssertionError("no probe")

    async def close(self) -> None: ...


async def replying(service: Service) -> tuple[ServedNode, HeldScript]:
    """A session in the middle of its first reply, under version 1."""
    served = await service.add_node()
    await service.client.set_policy_version("1")
    await until(lambda: served.node.gate.policy.version == "1")
    await service.client.submit(agent_task(task_id="t"))
    await until(lambda: served.engine.active)
    return served, HeldScript(served)


async def outcome(service: Service) -> tuple[SessionResult, SessionUpload]:
    return (await results_of(service, "t"))["t-0"], await service.client.upload("t-0")


async def test_in_flight_the_reply_that_spans_the_update_is_dropped_and_the_next_is_not(patient: Service) -> None:
    _, target = await replying(patient)
    async with hang_limit():
        await WeightUpdates(patient.client, target, "in_flight").push({}, "2")
    result, upload = await outcome(patient)
    assert target.generating == [1], "the update did not wait for the reply"
    assert [(call.policy_version, call.updated_within) for call in upload.calls] == [("1", True), ("2", False)]
    assert result.statistics.dropped == {"mixed_versions": len(upload.calls[0].completion_ids)}
    assert result.score and result.score.reward == 1.0, "the session itself goes on"


async def test_a_drain_waits_for_the_reply_and_nothing_is_dropped(patient: Service) -> None:
    served, target = await replying(patient)
    pushing = asyncio.create_task(WeightUpdates(patient.client, target, "drain").push({}, "2"))
    await until(lambda: served.node.gate.policy.paused)
    assert not pushing.done() and target.generating == []
    served.engine.release()
    async with hang_limit():
        await pushing
    result, upload = await outcome(patient)
    assert target.generating == [0]
    assert [call.policy_version for call in upload.calls] == ["1", "2"]
    assert result.statistics.dropped == {}
