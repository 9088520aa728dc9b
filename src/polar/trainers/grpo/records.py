"""What a training run reports: a line of JSON for each step, TensorBoard, curves at the server."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from polar.types import TrainingPoint

Phase = Literal["train", "eval"]

METRICS_FILE = "metrics.jsonl"


class Records:
    """Appends; a resumed run continues its files. `listener` gets each point, too."""

    def __init__(self, output: Path, listener: Callable[[TrainingPoint], None] = lambda _: None) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self._path = output / METRICS_FILE
        self._listener = listener
        self._board = _tensorboard(output)

    def add(self, phase: Phase, step: int, metrics: dict[str, float]) -> TrainingPoint:
        point = TrainingPoint(phase=phase, step=step, at=time.time(), metrics=metrics)
        with self._path.open("a") as file:
            file.write(point.model_dump_json() + "\n")
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(f"{phase}/{name}", value, step, walltime=point.at)
            self._board.flush()
        self._listener(point)
        return point

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_points(output: Path) -> list[TrainingPoint]:
    """Of a run, in order. Where a step was done again after a resume, only the later point stands."""
    path = output / METRICS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    points = (TrainingPoint.model_validate_json(line) for line in lines)
    return list({(point.phase, point.step): point for point in points}.values())


def _tensorboard(output: Path) -> Any:
    """None without the package: the JSON lines have the same."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return SummaryWriter(str(output / "tensorboard"))
