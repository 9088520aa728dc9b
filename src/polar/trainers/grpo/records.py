"""What a training run reports: a line of JSON for each step, TensorBoard, curves at the server."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

Phase = Literal["train", "evaluate"]

METRICS_FILE = "metrics.jsonl"


class Point(msgspec.Struct, frozen=True):
    """The metrics of one step, or of one evaluation."""

    phase: Phase
    step: int
    """Steps that were done when it was measured."""
    at: float
    """Unix seconds."""
    values: dict[str, float]


class Records:
    """Appends; a resumed run continues its files. `listeners` get each point, too."""

    def __init__(self, output: Path, *listeners: Callable[[Point], None]) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self._path = output / METRICS_FILE
        self._listeners = listeners
        self._board = _tensorboard(output)

    def add(self, phase: Phase, step: int, values: dict[str, float]) -> Point:
        point = Point(phase, step, time.time(), values)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(point) + b"\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{phase}/{name}", value, step, walltime=point.at)
            self._board.flush()
        for listener in self._listeners:
            listener(point)
        return point

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_points(output: Path) -> list[Point]:
    """Of a run, in order. Where a step was done again after a resume, only the later point stands."""
    path = output / METRICS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    points = (msgspec.convert(json.loads(line), Point) for line in lines)
    return list({(point.phase, point.step): point for point in points}.values())


def _tensorboard(output: Path) -> Any:
    """None without the package: the JSON lines have the same."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return SummaryWriter(str(output / "tensorboard"))
