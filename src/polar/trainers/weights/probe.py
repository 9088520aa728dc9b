"""The proof of a weight update: the engine scores a probe as the trainer does, and not as before the update.

Two programs never give exactly the same logprobs for the same weights: kernels and precision differ. How far they
differ is measured once, before the first update, when both have the same weights: the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polar.trainers.weights.base import WeightError, WeightTarget

MAX_NOISE = 0.5
"""Mean difference above which trainer and engine cannot have the same weights."""
MARGIN = 1.5
"""The difference after a push may be this many times the noise: it depends on the weights as well."""
EXACT = 1e-4
"""Added to the noise of engines that compute in float32, where the noise is a few millionths."""
NEARER = 0.9
"""Largest allowed ratio of the difference to the new weights and that to the old ones. If old and new are as far
apart as the noise, it is about 0.7 for an engine with the new weights, and 1.4 with the old ones."""


@dataclass(frozen=True)
class ProbeReport:
    """Mean absolute differences of the probe's logprobs."""

    noise: float
    """Between trainer and engine with the same weights."""
    difference: float
    """Between the trainer's weights and the engine's, after the push."""
    to_old: float
    """Between the weights of the last clear proof and the engine's."""
    moved: float
    """Between the weights of the last clear proof and the trainer's."""

    @property
    def clear(self) -> bool:
        """The weights have changed by more than the noise, so the engine's are either the old or the new ones."""
        return self.moved > self.noise


class WeightProbe:
    """`ids`: some hundred tokens of the kind that is trained. `trainer_logprobs` computes those of `ids[1:]` with
    the trainer's current weights."""

    def __init__(
        self,
        target: WeightTarget,
        ids: Sequence[int],
        trainer_logprobs: Callable[[Sequence[int]], Sequence[float]],
    ) -> None:
        if len(ids) < 2:
            raise ValueError("a probe needs two tokens or more: the first has no logprob")
        self._target = target
        self._ids = tuple(ids)
        self._trainer_logprobs = trainer_logprobs
        self._noise = 0.0
        self._old: Sequence[float] = ()
        self.last: ProbeReport | None = None

    async def measure_noise(self) -> float:
        """To be called before the first push, while trainer and engine have the same weights; a trainer that
        continues from a checkpoint calls it before it loads the checkpoint."""
        trainer = list(self._trainer_logprobs(self._ids))
        noise = _difference(trainer, await self._target.score(self._ids))
        if not noise <= MAX_NOISE:  # NaN, too
            raise WeightError(
                f"before the first update the engine's logprobs differ from the trainer's by {noise:.3g} on "
                "average: start the engine with the weights that the trainer starts from"
            )
        self._noise, self._old = noise, trainer
        return noise

    async def check(self) -> ProbeReport:
        """After a push. Raises `WeightError` that says which of the two conditions does not hold."""
        if not self._old:
            raise WeightError("the noise is unknown: call `measure_noise` before the first push")
        trainer, engine = list(self._trainer_logprobs(self._ids)), await self._target.score(self._ids)
        report = self.last = ProbeReport(
            self._noise,
            _difference(trainer, engine),
            _difference(self._old, engine),
            _difference(self._old, trainer),
        )
        if report.clear and not report.difference < NEARER * report.to_old:
            raise WeightError(
                f"the engine still has the old weights: its logprobs differ from theirs by {report.to_old:.3g} on "
                f"average, from the new ones by {report.difference:.3g}; see the server's log"
            )
        limit = max(MARGIN * self._noise, self._noise + EXACT)
        if not report.difference <= limit:
            raise WeightError(
                f"the engine has other weights than the trainer: its logprobs differ by {report.difference:.3g} "
                f"on average, and {limit:.3g} is allowed ({self._noise:.3g} before the first update); see the "
                "server's log for weights that it did not load"
            )
        if report.clear:
            self._old = trainer
        return report


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    if len(one) != len(other):
        raise WeightError(f"the probe has {len(one)} logprobs on one side and {len(other)} on the other")
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)
