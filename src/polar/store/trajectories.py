"""The trajectory of a session as one msgpack file, written atomically.

A trace that branches off another (`metadata["branch"]`) is stored without the prefix it shares with that trace;
reading restores it. All other traces are stored as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from polar.errors import PolarError
from polar.store.paths import write_whole
from polar.store.private import private_folder
from polar.types import TokenIds, Trace, Trajectory
from polar.types.codec import decode, encode
from polar.types.shared_ids import SharedIds, as_ids, as_shared


class TrajectoryUnreadable(PolarError):
    """A trajectory file that is missing or damaged."""


class SharedPrefix(msgspec.Struct, frozen=True):
    """The first `tokens` of an earlier trace, counted over its prompt and response."""

    trace: int
    tokens: int


class StoredTrace(Trace, frozen=True):
    """A trace in the file: its `prompt_ids` continue the shared prefix."""

    begins: SharedPrefix | None = None

    def __post_init__(self) -> None:
        """Not checked: its prompt is incomplete, and may be empty."""


class StoredTrajectory(Trajectory, frozen=True):
    """Also reads a plain `Trajectory`, in which no trace has `begins`."""

    traces: tuple[StoredTrace, ...] = ()


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


def packed(trajectory: Trajectory) -> bytes:
    if not any("branch" in trace.metadata for trace in trajectory.traces):
        return encode(trajectory)
    fields = asdict(trajectory)
    fields["traces"] = tuple(_cut(index, trajectory.traces) for index in range(len(trajectory.traces)))
    return encode(StoredTrajectory(**fields))


def unpacked(data: bytes) -> Trajectory:
    """Raises `ValueError` or `MsgspecError` for data that is not a trajectory."""
    stored = decode(data, StoredTrajectory)
    traces: list[Trace] = []
    prefixes: dict[SharedPrefix, SharedIds] = {}
    for trace in stored.traces:
        _check_arrays(trace)
        fields = asdict(trace)
        del fields["begins"]
        if trace.begins is not None:
            fields["prompt_ids"] = _restored(trace.prompt_ids, trace.begins, traces, prefixes)
        traces.append(Trace(**fields))
    fields = asdict(stored)
    fields["traces"] = tuple(traces)
    return Trajectory(**fields)


def _check_arrays(trace: StoredTrace) -> None:
    """The binary form stores each array's type, and decoding accepts any of them."""
    held = [getattr(trace, name).typecode for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs")]
    if held != ["i", "i", "b", "f"]:
        raise ValueError(f"arrays of types {', '.join(held)} instead of ids, a mask and logprobs")


def _cut(index: int, traces: Sequence[Trace]) -> StoredTrace:
    """Leaves the prefix out only if the other trace really has it: the metadata may be wrong."""
    trace = traces[index]
    fields = asdict(trace)
    begins = _begins(trace.metadata.get("branch"), len(trace.prompt_ids))
    if begins is not None and 0 <= begins.trace < index:
        if _first_of(traces[begins.trace], begins.tokens) == trace.prompt_ids[: begins.tokens]:
            fields |= {"prompt_ids": trace.prompt_ids[begins.tokens :], "begins": begins}
    return StoredTrace(**fields)


def _begins(branch: Any, prompt_tokens: int) -> SharedPrefix | None:
    try:
        begins = msgspec.convert(branch, SharedPrefix)
    except msgspec.ValidationError:
        return None
    return SharedPrefix(begins.trace, max(0, min(begins.tokens, prompt_tokens)))


def _restored(
    rest: TokenIds, begins: SharedPrefix, traces: Sequence[Trace], prefixes: dict[SharedPrefix, SharedIds]
) -> TokenIds:
    """Without a copy: traces share their common prefix in memory."""
    if not 0 <= begins.trace < len(traces):
        raise ValueError(f"trace {len(traces)} shares a prefix with trace {begins.trace}, which is not before it")
    if begins not in prefixes:
        earlier = traces[begins.trace]
        sequence = SharedIds(as_shared(earlier.prompt_ids), earlier.response_ids)
        if not 0 <= begins.tokens <= len(sequence):
            raise ValueError(f"trace {begins.trace} has fewer than {begins.tokens} tokens")
        prefixes[begins] = sequence.first(begins.tokens)
    return as_ids(SharedIds(prefixes[begins], rest) if rest else prefixes[begins])


def _first_of(trace: Trace, tokens: int) -> TokenIds:
    prompt = trace.prompt_ids[:tokens]
    return prompt + trace.response_ids[: tokens - len(prompt)] if tokens > len(prompt) else prompt
