"""The curves of a training run as a picture."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polar.trainers.grpo.records import Phase
from polar.types import TrainingPoint

SMOOTHED_OVER = 5


def plot_run(points: Sequence[TrainingPoint], path: Path, title: str = "") -> None:
    """Reward of training and evaluation; what the policy's tokens did; where the time went. Needs matplotlib."""
    import matplotlib  # noqa: PLC0415 - an optional dependency

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 - after the backend is chosen

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    _curve(axes[0], points, "train", "reward", "training reward", smooth=True)
    _curve(axes[0], points, "eval", "pass@1", "held-out pass@1")
    axes[0].set(title="Reward", xlabel="step", ylim=(0, 1.02))
    _curve(axes[1], points, "train", "gap", "|captured − recomputed logprob|")
    _curve(axes[1], points, "train", "entropy", "−logprob of sampled tokens")
    _curve(axes[1], points, "train", "no_contrast", "share of groups without contrast")
    axes[1].set(title="Policy", xlabel="step")
    for name, label in (("wait_s", "waiting for sessions"), ("learn_s", "training"), ("push_s", "weight update")):
        _curve(axes[2], points, "train", name, label)
    axes[2].set(title="Seconds of a step", xlabel="step")
    for axis in axes:
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:  # it warns where there is no curve
            axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _curve(
    axis: Any, points: Sequence[TrainingPoint], phase: Phase, name: str, label: str, smooth: bool = False
) -> None:
    found = [(p.step, p.metrics[name]) for p in points if p.phase == phase and name in p.metrics]
    if not found:
        return
    steps, values = [step for step, _ in found], [value for _, value in found]
    plot = axis.plot
    if not smooth:
        plot(steps, values, label=label, marker="o", markersize=3)
        return
    line = plot(steps, values, alpha=0.35)[0]
    means = [_mean(values[max(0, i - SMOOTHED_OVER + 1) : i + 1]) for i in range(len(values))]
    plot(steps, means, label=f"{label}, mean of {SMOOTHED_OVER}", color=line.get_color())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
