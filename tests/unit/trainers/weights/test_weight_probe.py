"""What the probe accepts and what it refuses. Logprobs here are drawn; the engine's differ from the trainer's by
noise of a known size, as two programs with the same weights do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from polar.trainers.weights import WeightError, WeightProbe, WeightTarget

IDS = list(range(200))
SIZE = len(IDS) - 1
BF16 = 0.067 / 0.8  # standard deviation of a mean difference of 0.067, as on a GPU


class Weights:
    """Logprobs of the probe, and steps away from them."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    @classmethod
    def drawn(cls) -> Weights:
        chance = Random(1)
        return cls([-abs(chance.gauss(0, 4)) for _ in range(SIZE)])

    def moved(self, size: float, seed: int = 2) -> Weights:
        chance = Random(seed)
        return Weights([value + chance.gauss(0, size) for value in self.values])


class NoisyEngine:
    """A target of which only the scores matter."""

    def __init__(self, weights: Weights, noise: float) -> None:
        self.weights = weights
        self.noise = noise
        self._chance = Random(3)

    async def score(self, ids: Sequence[int]) -> list[float]:
        return [value + self._chance.gauss(0, self.noise) for value in self.weights.values]

    async def hold(self) -> None: ...

    async def load(self, weights: object) -> None: ...

    async def release(self) -> None: ...

    async def close(self) -> None: ...


class Bench:
    def __init__(self, noise: float = BF16) -> None:
        self.trainer = Weights.drawn()
        self.engine = NoisyEngine(self.trainer, noise)
        self.probe = WeightProbe(self.engine, IDS, lambda _: self.trainer.values)

    def train(self, size: float, seed: int = 2) -> None:
        self.trainer = self.trainer.moved(size, seed)

    def push(self) -> None:
        self.engine.weights = self.trainer


async def test_the_noise_is_the_difference_with_equal_weights() -> None:
    assert await Bench(noise=0.0).probe.measure_noise() == 0.0
    assert await Bench().probe.measure_noise() == pytest.approx(0.067, rel=0.15)


async def test_an_engine_with_other_weights_at_the_start_is_refused() -> None:
    bench = Bench()
    bench.train(1.0)
    with pytest.raises(WeightError, match="start the engine with the weights that the trainer starts from"):
        await bench.probe.measure_noise()


async def test_an_engine_without_logprobs_is_refused() -> None:
    bench = Bench(noise=math.nan)
    with pytest.raises(WeightError, match="nan"):
        await bench.probe.measure_noise()


@pytest.mark.parametrize("noise", [0.0, 4e-6, BF16])
@pytest.mark.parametrize("size", [0.0, 0.01, BF16, 0.5])
async def test_a_push_that_worked_is_accepted(noise: float, size: float) -> None:
    bench = Bench(noise)
    await bench.probe.measure_noise()
    bench.train(size)
    bench.push()
    report = await bench.probe.check()
    assert report.difference <= 2 * report.noise + 1e-4
    assert not report.clear or report.share == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(("noise", "size"), [(0.0, 0.001), (4e-6, 0.01), (BF16, 3.5 * BF16), (BF16, 0.5)])
async def test_old_weights_are_recognised_as_soon_as_the_change_is_clear(noise: float, size: float) -> None:
    bench = Bench(noise)
    await bench.probe.measure_noise()
    bench.train(size)
    with pytest.raises(WeightError, match="still has the old weights"):
        await bench.probe.check()
    assert bench.probe.last and bench.probe.last.share < 0.3


async def test_half_of_the_weights_is_not_enough() -> None:
    """As with a head that the engine did not take."""
    bench = Bench()
    await bench.probe.measure_noise()
    bench.train(0.6)
    bench.push()
    bench.engine.weights = bench.engine.weights.moved(0.3, seed=8)
    with pytest.raises(WeightError, match=r"other weights than the trainer.*did not load"):
        await bench.probe.check()


async def test_small_updates_that_never_arrive_add_up() -> None:
    bench = Bench()
    await bench.probe.measure_noise()
    with pytest.raises(WeightError, match="old weights"):
        for step in range(40):
            bench.train(0.06, seed=100 + step)
            await bench.probe.check()
    assert step > 2, "one alone is smaller than the noise"


async def test_small_updates_that_arrive_are_accepted_for_ever() -> None:
    bench = Bench()
    await bench.probe.measure_noise()
    clear = 0
    for step in range(200):
        bench.train(0.06, seed=100 + step)
        bench.push()
        clear += (await bench.probe.check()).clear
    assert clear > 5


async def test_a_change_that_is_mostly_rounding_is_no_alarm() -> None:
    """Seen on a GPU: after a small step the trainer's logprobs were rounded anew, the engine's otherwise."""
    bench = Bench()
    await bench.probe.measure_noise()
    for step in range(50):
        bench.train(BF16 / 3, seed=100 + step)
        bench.push()
        step_alone, rounding = bench.trainer, Weights(bench.trainer.values).moved(BF16, seed=500 + step)
        bench.trainer = rounding
        await bench.probe.check()
        bench.trainer = step_alone


async def test_noise_that_grows_a_little_with_training_is_accepted() -> None:
    bench = Bench()
    await bench.probe.measure_noise()
    bench.engine.noise *= 1.5
    for step in range(50):
        bench.train(0.05, seed=100 + step)
        bench.push()
        await bench.probe.check()


async def test_a_push_before_the_noise_is_known_is_refused() -> None:
    with pytest.raises(WeightError, match="measure_noise"):
        await Bench().probe.check()


async def test_a_trainer_that_scores_other_tokens_is_refused() -> None:
    bench = Bench()
    bench.trainer = Weights(bench.trainer.values[1:])
    with pytest.raises(WeightError, match="the trainer gave 198 logprobs, the engine 199"):
        await bench.probe.measure_noise()


class ReplicaBench(Bench):
    """Two replicas, the second noisier than the first."""

    def __init__(self) -> None:
        super().__init__()
        self.second = NoisyEngine(self.trainer, 1.5 * BF16)
        self.away: set[str] = set()
        self.probe = WeightProbe(self, IDS, lambda _: self.trainer.values)

    def present(self) -> dict[str, WeightTarget]:
        both: dict[str, WeightTarget] = {"http://a": self.engine, "http://b": self.second}
        return {name: engine for name, engine in both.items() if name not in self.away}

    async def score(self, ids: Sequence[int]) -> list[float]:
        raise AssertionError("each replica is asked")

    async def hold(self) -> None: ...

    async def load(self, weights: object) -> None: ...

    async def release(self) -> None: ...

    async def close(self) -> None: ...


class TestReplicas:
    async def test_each_has_a_noise_of_its_own(self) -> None:
        bench = ReplicaBench()
        assert await bench.probe.measure_noise() == pytest.approx(0.1, rel=0.2), "the larger one"
        bench.train(0.5)
        bench.push()
        bench.second.weights = bench.trainer
        report = await bench.probe.check()
        assert report.noise == pytest.approx(0.1, rel=0.2) and report.clear

    async def test_the_one_with_the_old_weights_is_named(self) -> None:
        bench = ReplicaBench()
        await bench.probe.measure_noise()
        bench.train(0.6)
        bench.push()
        with pytest.raises(WeightError, match="the engine at http://b still has the old weights") as caught:
            await bench.probe.check()
        assert "http://a" not in str(caught.value)
        assert bench.probe.last and bench.probe.last.share < 0.3

    async def test_one_that_starts_with_other_weights_is_named(self) -> None:
        bench = ReplicaBench()
        bench.second.weights = bench.trainer.moved(2.0)
        with pytest.raises(WeightError, match="the engine at http://b differ"):
            await bench.probe.measure_noise()

    async def test_one_that_was_away_is_proven_when_it_returns(self) -> None:
        bench = ReplicaBench()
        bench.away = {"http://b"}
        await bench.probe.measure_noise()
        bench.away = set()
        bench.train(0.8)
        bench.push()
        with pytest.raises(WeightError, match="http://b"):
            await bench.probe.check()
