"""An evaluation as a plot: a panel for each rate, a row for each variant, with its 95 % interval."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polar.credit.intervals import Estimate
from polar.errors import PolarError
from polar.trainers.evaluation import EvalReport, VariantReport

FORMATS = (".png", ".svg", ".pdf")
Panel = tuple[str, Callable[[VariantReport], Estimate | None]]


def check_plot(path: Path) -> None:
    """Raises `PolarError` for what would fail after hours of evaluation."""
    if path.is_dir():
        raise PolarError(f"{path} is a folder: name a file for the plot, such as {path / 'rates.png'}")
    if path.suffix not in FORMATS:
        raise PolarError(f"{path}: a plot is one of {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise PolarError(f"{path}: there is no folder {path.absolute().parent}")
    _matplotlib()


def write_plot(report: EvalReport, path: Path) -> None:
    figure_of = _matplotlib()
    panels = _panels(report)
    variants = list(reversed(report.variants))  # the first row on top
    policies = list(dict.fromkeys(each.variant.policy for each in report.variants))
    figure = figure_of(figsize=(2 + 3.2 * len(panels), 1.4 + 0.45 * len(variants)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, value_of) in zip(axes, panels, strict=True):
        for row, each in enumerate(variants):
            if (estimate := value_of(each)) is not None:
                _draw(axis, row, estimate, f"C{policies.index(each.variant.policy)}")
        axis.set_title(title)
        axis.set_xlim(-0.02, 1.02)
        axis.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(variants)), [_name(each) for each in variants])
    axes[0].set_ylim(-0.6, len(variants) - 0.4)
    figure.savefig(path, dpi=150)


def _panels(report: EvalReport) -> list[Panel]:
    """pass@k and pass^k for each k; for k = 1 they are the same."""

    def once(k: int) -> Panel:
        return f"pass@{k}", lambda each: rates.pass_at if (rates := each.at(k)) else None

    def always(k: int) -> Panel:
        return f"pass^{k}", lambda each: rates.pass_hat if (rates := each.at(k)) else None

    return [panel for k in report.settings.ks for panel in ((once(k), always(k)) if k > 1 else (once(k),))]


def _draw(axis: Any, row: int, estimate: Estimate, colour: str) -> None:
    sides = [[estimate.value - estimate.low], [estimate.high - estimate.value]]
    axis.errorbar([estimate.value], [row], xerr=sides, fmt="o", color=colour, capsize=3)


def _name(each: VariantReport) -> str:
    variant = each.variant
    return " ".join(part for part in (variant.policy, variant.harness, variant.runtime) if part)


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise PolarError("a plot needs matplotlib: pip install 'polar-rollout[plot]'") from error
    return Figure
