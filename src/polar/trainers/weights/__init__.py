"""Weight updates: new weights into a running engine, and the proof that it has them (docs/weights.md)."""

from polar.trainers.weights.base import (
    ReplicatedTarget,
    WeightError,
    WeightOptions,
    Weights,
    WeightTarget,
    check_has_address,
    check_takes_weights,
    weight_target,
)
from polar.trainers.weights.probe import ProbeReport, WeightProbe
from polar.trainers.weights.update import WeightUpdates

__all__ = [
    "ProbeReport",
    "ReplicatedTarget",
    "WeightError",
    "WeightOptions",
    "WeightProbe",
    "WeightTarget",
    "WeightUpdates",
    "Weights",
    "check_has_address",
    "check_takes_weights",
    "weight_target",
]
