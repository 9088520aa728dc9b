"""The trajectory of a session as one file, in its packed form (`types/packed.py`), written atomically."""

from __future__ import annotations

from pathlib import Path

import msgspec

from polar.errors import PolarError
from polar.store.paths import write_whole
from polar.store.private import private_folder
from polar.types import Trajectory
from polar.types.packed import packed, unpacked


class TrajectoryUnreadable(PolarError):
    """A trajectory file that is missing or damaged."""


def write_trajectory(path: Path, trajectory: Trajectory) -> None:
    try:
        private_folder(path.parent)
        write_whole(path, packed(trajectory))
    except OSError as error:
        raise PolarError(f"cannot write the traces to {path}: {error.strerror}") from error


def read_trajectory(path: Path) -> Trajectory:
    try:
        return unpacked(path.read_bytes())
    except OSError as error:
        raise TrajectoryUnreadable(f"cannot read the traces at {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise TrajectoryUnreadable(f"the traces at {path} are damaged: {error}") from error
