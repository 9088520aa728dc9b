"""What a training run reports: a line of JSON for each step, TensorBoard, curves at the server."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import ValidationError

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
        with self._path.open("a+b") as file:
            if not _ends_a_line(file):  # a kill or a full disk cut it off
                file.write(b"\n")
            file.write(point.model_dump_json().encode() + b"\n")
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
    """Of a run, in order. Where a step was done again after a resume, only the later point stands; a line that was
    cut off is left out."""
    path = output / METRICS_FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    points = (point for line in lines if (point := _point(line)) is not None)
    return list({(point.phase, point.step): point for point in points}.values())


def _point(line: bytes) -> TrainingPoint | None:
    """None: the line was cut off."""
    try:
        return TrainingPoint.model_validate_json(line)
    except ValidationError:
        return None


def _ends_a_line(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _tensorboard(output: Path) -> Any:
    """None without the package: the JSON lines have the same."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return SummaryWriter(str(output / "tensorboard"))
