"""The trajectory of a session as one file: msgpack, whole or not there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from polar.errors import PolarError
from polar.store.paths import write_whole
from polar.types import Trajectory
from polar.types.codec import decode, encode


class TrajectoryUnreadable(PolarError):
    """A trajectory file that is missing or damaged."""


def write_trajectory(path: Path, trajectory: Trajectory) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encode(trajectory))
    except OSError as error:
        raise PolarError(f"the traces cannot be written to {path}: {error.strerror}") from error


def read_trajectory(path: Path) -> Trajectory:
    try:
        return decode(path.read_bytes(), Trajectory)
    except OSError as error:
        raise TrajectoryUnreadable(f"the traces at {path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise TrajectoryUnreadable(f"the traces at {path} are damaged: {error}") from error
