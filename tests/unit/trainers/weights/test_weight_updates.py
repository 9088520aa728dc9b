"""The order of an update's steps, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from polar.client import NotDrained
from polar.errors import EngineError
from polar.trainers.weights import WeightError, WeightProbe, WeightTarget, WeightUpdates
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


async def test_an_engine_started_with_other_weights_does_not_count_as_noise() -> None:
    """A warm start is pushed into an engine that serves the base model. If that difference were the noise, later
    pushes that fail would look proven."""

    class OtherWeights(Steps):
        async def score(self, ids: Sequence[int]) -> list[float]:
            return [-1.0 if "load" in self.seen else -1.3] * (len(ids) - 1)

    steps = OtherWeights()
    probe = WeightProbe(steps, [1, 2, 3], lambda ids: [-1.0] * (len(ids) - 1))
    await updates(steps, "drain", probe).begin(WEIGHTS)
    assert (await probe.check()).noise == 0.0


async def test_an_engine_that_a_killed_trainer_left_held_is_released_before_it_is_asked_for_scores() -> None:
    steps = Steps()
    probe = WeightProbe(steps, [1, 2, 3], lambda ids: [-1.0] * (len(ids) - 1))
    await updates(steps, "in_flight", probe).begin(WEIGHTS)
    assert steps.seen == ["load", "release", "score"]


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


class ReplicatedSteps(NamingSteps):
    """Two replicas, as far as an update sees them."""

    def present(self) -> dict[str, WeightTarget]:
        return {"http://a": self, "http://b": self}


class TestReplicas:
    """One that has not got the weights must not sample beside one that has."""

    async def test_each_is_proven(self) -> None:
        steps = ReplicatedSteps()
        await updates(steps, "drain", await probe_of(steps)).push(WEIGHTS, "7")
        assert steps.seen == ["pause", "load", "score", "score", "engine version 7", "version 7", "resume"]

    @pytest.mark.parametrize("fails_at", ["load", "score"])
    async def test_a_failed_drain_stays_paused_until_a_push_succeeds(self, fails_at: str) -> None:
        steps = ReplicatedSteps()
        probe = await probe_of(steps)
        steps._fails_at = fails_at
        pushes = updates(steps, "drain", probe)
        with pytest.raises(WeightError, match=rf"{fails_at} failed; .*none of them samples until a push succeeds"):
            await pushes.push(WEIGHTS, "7")
        assert "resume" not in steps.seen and "version 7" not in steps.seen
        steps._fails_at = ""
        await pushes.push(WEIGHTS, "7")
        assert steps.seen[-1] == "resume"

    async def test_a_failed_load_in_flight_leaves_them_held(self) -> None:
        steps = ReplicatedSteps(fails_at="load")
        pushes = updates(steps, "in_flight")
        with pytest.raises(WeightError, match="none of them samples"):
            await pushes.push(WEIGHTS, "7")
        assert steps.seen == ["hold", "load"]
        steps._fails_at = ""
        await pushes.push(WEIGHTS, "7")
        assert steps.seen[-1] == "release"

    async def test_a_failed_proof_in_flight_holds_them_again(self) -> None:
        steps = ReplicatedSteps()
        probe = await probe_of(steps)
        steps._fails_at = "score"
        with pytest.raises(WeightError, match="none of them samples"):
            await updates(steps, "in_flight", probe).push(WEIGHTS, "7")
        assert steps.seen[-2:] == ["score", "hold"] or steps.seen[-1] == "hold"

    @pytest.mark.parametrize("fails_at", ["pause", "hold"])
    async def test_before_anything_has_changed_generation_goes_on(self, fails_at: str) -> None:
        steps = ReplicatedSteps(fails_at=fails_at)
        mode, undone = ("drain", "resume") if fails_at == "pause" else ("in_flight", "release")
        with pytest.raises((NotDrained, EngineError)):
            await updates(steps, mode).push(WEIGHTS, "7")
        assert steps.seen == [fails_at, undone]

    async def test_a_node_that_does_not_acknowledge_is_no_reason_to_stop(self) -> None:
        steps = ReplicatedSteps(unheard=[("node-9",)] * 10_000)
        with pytest.raises(WeightError, match="node-9"):
            await updates(steps, "in_flight", timeout_s=0.2).push(WEIGHTS, "7")
        assert steps.seen[-1] == "release", "all replicas have the same weights"
