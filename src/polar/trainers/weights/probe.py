"""The proof of a weight update: the engine scores a probe as the trainer does, and not as before the update.

Two programs never compute exactly the same logprobs from the same weights: kernels and precision differ. How far
they differ is measured once, before the first update, when both have the same weights: the noise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polar.trainers.weights.base import ReplicatedTarget, WeightError, WeightTarget

MAX_NOISE = 0.5
"""Mean difference above which trainer and engine cannot have the same weights."""
MARGIN = 2.0
"""How many times the noise the difference after a push may be: the noise depends on the weights as well."""
EXACT = 1e-4
"""Allowed in any case: the noise of float32 is only a few millionths."""
CLEAR = 3.0
"""How many times the noise the trainer's logprobs must have moved before the share counts. Under bfloat16 the
smallest change of weights rounds everything anew: of a way as long as the noise, most is rounding, and the engine
rounds differently."""
HALF_WAY = 0.5
PROBE_TOKENS = 200


@dataclass(frozen=True)
class ProbeReport:
    """What the probe has shown after a push; mean absolute differences of its logprobs."""

    noise: float
    """Between trainer and engine with the same weights."""
    difference: float
    """Between trainer and engine after the push."""
    moved: float
    """Between the trainer's old weights and its new ones. Old are those of the last clear report, so that many
    small updates add up."""
    share: float
    """How much of that way the engine has gone: about 0 with the old weights, 1 with the new ones."""

    @property
    def clear(self) -> bool:
        """The weights have changed by so much that the share tells the old ones from the new."""
        return self.moved > max(CLEAR * self.noise, EXACT)


class WeightProbe:
    """`ids`: some hundred tokens. `trainer_logprobs` computes the logprobs of `ids[1:]` with the trainer's current
    weights."""

    def __init__(
        self,
        target: WeightTarget,
        ids: Sequence[int],
        trainer_logprobs: Callable[[Sequence[int]], Sequence[float]],
        margin: float = MARGIN,
    ) -> None:
        if len(ids) < 2:
            raise ValueError("a probe needs at least two tokens: the first has no logprob")
        self._target = target
        self._ids = tuple(ids)
        self._trainer_logprobs = trainer_logprobs
        self._margin = margin
        self._noise: dict[str, float] = {}
        """By replica."""
        self._old: list[float] = []
        self.last: ProbeReport | None = None
        """Of the replica that differs most."""

    async def measure_noise(self) -> float:
        """To be called before the first push, while trainer and engine have the same weights. Of several replicas,
        the largest."""
        trainer, scores = await self._scores()
        noise = {name: _difference(trainer, engine) for name, engine in scores.items()}
        for name, value in noise.items():
            if not value <= MAX_NOISE:  # NaN, too
                raise WeightError(
                    f"before the first update the logprobs of the engine{_at(name)} differ from the trainer's by "
                    f"{value:.3g} on average: start the engine with the weights that the trainer starts from"
                )
        self._noise, self._old = noise, trainer
        return max(noise.values())

    async def check(self) -> ProbeReport:
        """After a push. Raises `WeightError`, which says what the engine has instead of the new weights."""
        if not self._old:
            raise WeightError("the noise is unknown: call `measure_noise` before the first push")
        trainer, scores = await self._scores()
        reports = {name: self._report(name, trainer, engine) for name, engine in scores.items()}
        problems = [problem for name, report in reports.items() if (problem := self._problem(name, report))]
        self.last = max(reports.values(), key=lambda report: (report.difference, -report.share))
        if problems:
            raise WeightError("; ".join(problems))
        if self.last.clear:
            self._old = trainer
        return self.last

    def _report(self, name: str, trainer: list[float], engine: list[float]) -> ProbeReport:
        noise = self._noise.get(name, max(self._noise.values()))  # it may have been away when noise was measured
        moved = _difference(self._old, trainer)
        return ProbeReport(noise, _difference(trainer, engine), moved, _share(self._old, trainer, engine))

    def _problem(self, name: str, report: ProbeReport) -> str:
        limit = max(self._margin * report.noise, report.noise + EXACT)
        too_far = not report.difference <= limit  # NaN, too
        if (report.clear or too_far) and not report.share > HALF_WAY:
            return (
                f"the engine{_at(name)} still has the old weights: its logprobs have gone {report.share:.0%} of "
                f"the way to the new ones, which differ by {report.moved:.3g} on average (noise: "
                f"{report.noise:.3g}); see the server's log"
            )
        if too_far:
            return (
                f"the engine{_at(name)} has other weights than the trainer: its logprobs differ by "
                f"{report.difference:.3g} on average, and {limit:.3g} is allowed ({report.noise:.3g} before the "
                "first update); see the server's log for weights that it did not load"
            )
        return ""

    async def _scores(self) -> tuple[list[float], dict[str, list[float]]]:
        """The trainer's, and those of each replica; the name of an engine without replicas is empty."""
        target = self._target
        targets = target.present() if isinstance(target, ReplicatedTarget) else {"": target}
        trainer = list(self._trainer_logprobs(self._ids))
        found = await asyncio.gather(*(each.score(self._ids) for each in targets.values()))
        scores = dict(zip(targets, found, strict=True))
        for name, engine in scores.items():
            if not len(trainer) == len(engine) == len(self._ids) - 1:
                raise WeightError(
                    f"for {len(self._ids) - 1} tokens of the probe the trainer gave {len(trainer)} logprobs, the "
                    f"engine{_at(name)} {len(engine)}"
                )
        return trainer, scores


def probe_ids(vocabulary_size: int) -> list[int]:
    """Random, but the same in every run."""
    draw = random.Random(0)
    return [draw.randrange(vocabulary_size) for _ in range(PROBE_TOKENS)]


def _at(replica: str) -> str:
    return f" at {replica}" if replica else ""


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def _share(old: Sequence[float], new: Sequence[float], engine: Sequence[float]) -> float:
    """The point on the line from old to new that is nearest to the engine's. Noise has no direction, so it changes
    this little."""
    way = [b - a for a, b in zip(old, new, strict=True)]
    length = sum(step * step for step in way)
    gone = sum((c - a) * step for a, c, step in zip(old, engine, way, strict=True))
    return gone / length if length else 1.0
