"""The form in which trajectories and uploads travel and rest: prefixes that traces share once, then compressed.

A trace that branches off another (`metadata["branch"]`) is packed without the prefix it shares with that trace;
unpacking restores it without a copy. All other traces are packed as they are. Whoever asks the server for plain
msgpack gets every trace whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import zstandard
from msgspec.structs import asdict

from polar.types.base import TokenIds
from polar.types.call import Call
from polar.types.codec import decode, encode
from polar.types.service.nodes import SessionFile, SessionUpload
from polar.types.shared_ids import SharedIds, as_ids, as_shared
from polar.types.trace import Trace, Trajectory

PACKED = "application/vnd.polar.packed+zstd"
"""The media type of the packed form, compressed."""
LEVEL = 3
WINDOW_LOG = 24
"""16 MiB: traces repeat the tokens of calls that stand megabytes before them."""
MAX_WINDOW_BYTES = 2**27
"""The most memory that a frame may claim for reading it: what every reader of zstd allows."""
_ZSTD = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins; no msgpack map begins so."""


class TooLarge(ValueError):
    """More bytes than are allowed, once decompressed."""


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


class _StoredUpload(msgspec.Struct, frozen=True):
    """A `SessionUpload` as it is packed. Also reads a plain one."""

    result: bytes
    trajectory: StoredTrajectory | None
    calls: tuple[Call, ...] = ()
    files: tuple[SessionFile, ...] = ()


def compressed(data: bytes) -> bytes:
    """With a checksum: a damaged byte is an error, never another token. Slow with large data: call it in a
    thread."""
    settings = zstandard.ZstdCompressionParameters(
        compression_level=LEVEL, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True
    )
    return zstandard.ZstdCompressor(compression_params=settings).compress(data)


def decompressed(data: bytes, limit_bytes: int | None = None) -> bytes:
    """Data that is not compressed is returned as it is. Raises `TooLarge` before more than the limit is in memory,
    and `ValueError` for a damaged frame."""
    if data.startswith(_ZSTD):
        data = _read_frames(data, -1 if limit_bytes is None else limit_bytes + 1)
    if limit_bytes is not None and len(data) > limit_bytes:
        raise TooLarge(f"more than {limit_bytes} bytes, decompressed")
    return data


def is_compressed(data: bytes) -> bool:
    return data.startswith(_ZSTD)


def _read_frames(data: bytes, size: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        with decompressor.stream_reader(data, read_across_frames=True) as reader:
            return reader.read(size)
    except zstandard.ZstdError as error:
        raise ValueError(f"damaged: {error}") from error


def pack_upload(upload: SessionUpload) -> bytes:
    """Slow with a large upload: call it in a thread."""
    trajectory = None if upload.trajectory is None else _cut_all(upload.trajectory)
    return compressed(encode(SessionUpload(upload.result, trajectory, upload.calls, upload.files)))


def unpack_upload(data: bytes, limit_bytes: int | None = None) -> SessionUpload:
    """Reads packed and plain uploads. Raises `ValueError` or `MsgspecError` for other data."""
    stored = decode(decompressed(data, limit_bytes), _StoredUpload)
    trajectory = None if stored.trajectory is None else _restored_all(stored.trajectory)
    return SessionUpload(stored.result, trajectory, stored.calls, stored.files)


def packed(trajectory: Trajectory) -> bytes:
    """Not compressed."""
    return encode(_cut_all(trajectory))


def _cut_all(trajectory: Trajectory) -> Trajectory:
    if not any("branch" in trace.metadata for trace in trajectory.traces):
        return trajectory
    fields = asdict(trajectory)
    fields["traces"] = tuple(_cut(index, trajectory.traces) for index in range(len(trajectory.traces)))
    return StoredTrajectory(**fields)


def unpacked(data: bytes) -> Trajectory:
    """Compressed or not. Raises `ValueError` or `MsgspecError` for data that is not a trajectory."""
    return _restored_all(decode(decompressed(data), StoredTrajectory))


def _restored_all(stored: StoredTrajectory) -> Trajectory:
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
