"""The trajectory of a session as one file: msgpack, whole or not there.

A trace that branches off another (`metadata["branch"]`) is kept without the tokens it begins with, which stand in
the other; reading puts them back. All other traces are kept as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from polar.errors import PolarError
from polar.store.paths import write_whole
from polar.types import (
    Break,
    CallKind,
    Dropped,
    Logprobs,
    LossMask,
    Span,
    TokenIds,
    Trace,
    Trajectory,
)
from polar.types.codec import decode, encode
from polar.types.shared_ids import SharedIds, as_ids, as_shared


class TrajectoryUnreadable(PolarError):
    """A trajectory file that is missing or damaged."""


class Begins(msgspec.Struct, frozen=True):
    """The first `tokens` of an earlier trace, counted over its prompt and response."""

    trace: int
    tokens: int


class StoredTrace(msgspec.Struct, frozen=True):
    """A trace as it lies in the file: its prompt goes on after what it begins with."""

    session_id: str
    prompt_ids: TokenIds
    response_ids: TokenIds
    loss_mask: LossMask
    logprobs: Logprobs
    spans: tuple[Span, ...]
    kind: CallKind = "agent"
    context_exact: bool = True
    reward: float | None = None
    metadata: dict[str, Any] = {}
    task_id: str = ""
    group_id: str = ""
    sample: int = 0
    attempt: int = 0
    failure: str = ""
    begins: Begins | None = None


class StoredTrajectory(msgspec.Struct, frozen=True):
    """Reads also what has no `begins`: a `Trajectory` in its plain form."""

    session_id: str
    builder: str
    traces: tuple[StoredTrace, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    breaks: tuple[Break, ...] = ()
    statistics: dict[str, Any] = {}
    builder_version: str = ""


def write_trajectory(path: Path, trajectory: Trajectory) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, packed(trajectory))
    except OSError as error:
        raise PolarError(f"the traces cannot be written to {path}: {error.strerror}") from error


def read_trajectory(path: Path) -> Trajectory:
    try:
        return unpacked(path.read_bytes())
    except OSError as error:
        raise TrajectoryUnreadable(f"the traces at {path} cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise TrajectoryUnreadable(f"the traces at {path} are damaged: {error}") from error


def packed(trajectory: Trajectory) -> bytes:
    if not any("branch" in trace.metadata for trace in trajectory.traces):
        return encode(trajectory)
    fields = _fields_of(trajectory)
    fields["traces"] = tuple(_cut(index, trajectory.traces) for index in range(len(trajectory.traces)))
    return encode(StoredTrajectory(**fields))


def unpacked(data: bytes) -> Trajectory:
    """Raises `ValueError` or `MsgspecError` for what is no trajectory."""
    stored = decode(data, StoredTrajectory)
    traces: list[Trace] = []
    beginnings: dict[Begins, SharedIds] = {}
    for trace in stored.traces:
        _check_arrays(trace)
        fields = _fields_of(trace)
        del fields["begins"]
        if trace.begins is not None:
            fields["prompt_ids"] = _restored(trace.prompt_ids, trace.begins, traces, beginnings)
        traces.append(Trace(**fields))
    fields = _fields_of(stored)
    fields["traces"] = tuple(traces)
    return Trajectory(**fields)


def _check_arrays(trace: StoredTrace) -> None:
    """The binary form says of each array what it holds; a field takes any of them."""
    held = [getattr(trace, name).typecode for name in ("prompt_ids", "response_ids", "loss_mask", "logprobs")]
    if held != ["i", "i", "b", "f"]:
        raise ValueError(f"arrays of {', '.join(held)} where ids, a mask and logprobs belong")


def _cut(index: int, traces: Sequence[Trace]) -> StoredTrace:
    """Only what is proven to be in the other trace is left out: metadata may be wrong, a file may not."""
    trace = traces[index]
    begins = _begins(trace.metadata.get("branch"), len(trace.prompt_ids))
    if begins is None or not 0 <= begins.trace < index:
        return StoredTrace(**_fields_of(trace))
    if _first_of(traces[begins.trace], begins.tokens) != trace.prompt_ids[: begins.tokens]:
        return StoredTrace(**_fields_of(trace))
    own: dict[str, Any] = {"prompt_ids": trace.prompt_ids[begins.tokens :], "begins": begins}
    return StoredTrace(**(_fields_of(trace) | own))


def _begins(branch: Any, prompt_tokens: int) -> Begins | None:
    try:
        begins = msgspec.convert(branch, Begins)
    except msgspec.ValidationError:
        return None
    return Begins(begins.trace, max(0, min(begins.tokens, prompt_tokens)))


def _restored(
    rest: TokenIds, begins: Begins, traces: Sequence[Trace], beginnings: dict[Begins, SharedIds]
) -> TokenIds:
    """Not copied: what traces begin with in common they hold in common again."""
    if not 0 <= begins.trace < len(traces):
        raise ValueError(f"trace {len(traces)} begins like trace {begins.trace}, which is not before it")
    if begins not in beginnings:
        earlier = traces[begins.trace]
        sequence = SharedIds(as_shared(earlier.prompt_ids), earlier.response_ids)
        if not 0 <= begins.tokens <= len(sequence):
            raise ValueError(f"trace {begins.trace} has no {begins.tokens} tokens to begin with")
        beginnings[begins] = sequence.first(begins.tokens)
    return as_ids(SharedIds(beginnings[begins], rest) if rest else beginnings[begins])


def _first_of(trace: Trace, tokens: int) -> TokenIds:
    prompt = trace.prompt_ids[:tokens]
    return prompt + trace.response_ids[: tokens - len(prompt)] if tokens > len(prompt) else prompt


def _fields_of(value: msgspec.Struct) -> dict[str, Any]:
    """Without a copy: arrays stay the same objects."""
    return {name: getattr(value, name) for name in value.__struct_fields__}
