"""The order of an update's steps, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from polar.client import NotDrained
from polar.errors import EngineError
from polar.trainers.weights import WeightError, WeightProbe, WeightUpdates
from polar.types import Drain, Policy
from waiting import hang_limit, until

WEIGHTS: dict[str, Any] = {}


class Steps:
    """The client and the target at once: writes down what is asked of either."""

    def __init__(self, fails_at: str = "", unheard: Sequence[tuple[str, ...]] = ()) -> None:
        self.seen: list[str] = []
        self._fails_at = fails_at
        self.unheard = list(unheard)

    def _step(self, name: str, error: type[Exception] = WeightError) -> None:
        self.seen.append(name)
        if name == self._fails_at:
            raise error(f"{name} failed")

    async def pause(self, *, wait: bool, timeout_s: float | None) -> Policy:
        assert wait
        self.seen.append("pause")
        if self._fails_at == "pause":
            raise NotDrained("2 generations are under way", None)
        return Policy(paused=True)

    async def resume(self) -> Policy:
        self._step("resume")
        return Policy()

    async def set_policy_version(self, version: str) -> Policy:
        self._step(f"version {version}")
        return Policy(version=version)

    async def drain(self) -> Drain:
        return Drain(policy=Policy(), generating=3, unheard=self.unheard.pop(0) if self.unheard else ())

    async def hold(self) -> None:
        self._step("hold", EngineError)

    async def load(self, weights: Any) -> None:
        assert weights is WEIGHTS
        self._step("load")

    async def release(self) -> None:
        self._step("release", EngineError)

    async def score(self, ids: Sequence[int]) -> list[float]:
        self._step("score")
        return [-1.0] * (len(ids) - 1)

    async def close(self) -> None: ...


class NamingSteps(Steps):
    async def name_version(self, version: str) -> None:
        self._step(f"engine version {version}")


def updates(steps: Steps, mode: Any, probe: WeightProbe | None = None, **options: Any) -> WeightUpdates:
    client: Any = steps
    return WeightUpdates(client, steps, mode, probe, **options)


async def probe_of(steps: Steps) -> WeightProbe:
    probe = WeightProbe(steps, [1, 2, 3], lambda ids: [-1.0] * (len(ids) - 1))
    await probe.measure_noise()
    steps.seen.clear()
    return probe


async def test_drain_loads_and_proves_while_nothing_is_generated() -> None:
    steps = NamingSteps()
    await updates(steps, "drain", await probe_of(steps)).push(WEIGHTS, "7")
    assert steps.seen == ["pause", "load", "score", "engine version 7", "version 7", "resume"]


async def test_in_flight_holds_the_engine_and_proves_afterwards() -> None:
    steps = NamingSteps()
    await updates(steps, "in_flight", await probe_of(steps)).push(WEIGHTS, "7")
    assert steps.seen == ["hold", "load", "engine version 7", "version 7", "release", "score"]


async def test_an_engine_that_names_no_versions_is_not_asked_to() -> None:
    steps = Steps()
    await updates(steps, "in_flight").push(WEIGHTS, "7")
    assert steps.seen == ["hold", "load", "version 7", "release"]


async def test_in_flight_the_engine_is_held_until_every_node_knows_the_version() -> None:
    steps = Steps(unheard=[("a", "b"), ("b",)] * 3)
    await updates(steps, "in_flight").push(WEIGHTS, "7")
    assert steps.unheard == [] and steps.seen[-1] == "release"


async def test_a_node_that_never_acknowledges_is_named() -> None:
    steps = Steps(unheard=[("node-9",)] * 10_000)
    with pytest.raises(WeightError, match=r"node-9.*`drain`"):
        await updates(steps, "in_flight", timeout_s=0.2).push(WEIGHTS, "7")
    assert steps.seen[-1] == "release"


@pytest.mark.parametrize("fails_at", ["load", "version 7", "score"])
async def test_drain_always_resumes(fails_at: str) -> None:
    steps = Steps()
    probe = await probe_of(steps)
    steps._fails_at = fails_at
    with pytest.raises(WeightError, match=f"{fails_at} failed"):
        await updates(steps, "drain", probe).push(WEIGHTS, "7")
    assert steps.seen[-2:] == [fails_at, "resume"]


async def test_a_drain_that_takes_too_long_leaves_nothing_paused() -> None:
    steps = Steps(fails_at="pause")
    with pytest.raises(NotDrained):
        await updates(steps, "drain").push(WEIGHTS, "7")
    assert steps.seen == ["pause", "resume"]


@pytest.mark.parametrize("fails_at", ["hold", "load", "version 7"])
async def test_in_flight_always_releases(fails_at: str) -> None:
    steps = Steps(fails_at=fails_at)
    with pytest.raises((WeightError, EngineError), match=f"{fails_at} failed"):
        await updates(steps, "in_flight").push(WEIGHTS, "7")
    assert steps.seen[-2:] == [fails_at, "release"]


async def test_the_error_of_an_update_is_not_hidden_by_that_of_the_release() -> None:
    class Gone(Steps):
        async def release(self) -> None:
            raise EngineError("no connection")

    with pytest.raises(WeightError, match="load failed"):
        await updates(Gone(fails_at="load"), "in_flight").push(WEIGHTS, "7")


async def test_a_cancelled_update_releases_the_engine() -> None:
    class Slow(Steps):
        async def load(self, weights: Any) -> None:
            self.seen.append("load")
            await asyncio.Event().wait()

    steps = Slow()
    pushing = asyncio.create_task(updates(steps, "in_flight").push(WEIGHTS, "7"))
    await until(lambda: "load" in steps.seen)
    pushing.cancel()
    async with hang_limit():
        await asyncio.gather(pushing, return_exceptions=True)
    assert pushing.cancelled() and steps.seen == ["hold", "load", "release"]
