"""The packed form of uploads: prefixes once, compressed, bounded; plain ones are read too."""

from __future__ import annotations

import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from polar.types import SessionUpload, Span, Trace, Trajectory, logprobs, loss_mask, token_ids
from polar.types.codec import decode, encode
from polar.types.packed import (
    StoredTrajectory,
    TooLarge,
    compressed,
    decompressed,
    is_compressed,
    pack_upload,
    packed,
    unpack_upload,
    unpacked,
)


def a_comb(branches: int, tokens: int) -> Trajectory:
    """Each trace goes on from the whole of the one before."""
    chance = random.Random(branches)
    traces: list[Trace] = []
    context: list[int] = chance.choices(range(50_000), k=tokens)
    for number in range(branches):
        response = chance.choices(range(50_000), k=20)
        traces.append(
            Trace(
                session_id="s",
                prompt_ids=token_ids(context),
                response_ids=token_ids(response),
                loss_mask=loss_mask([1] * 20),
                logprobs=logprobs([-1.0] * 20),
                spans=(Span(f"c{number}", 0, 20),),
                metadata={} if not number else {"branch": {"trace": number - 1, "tokens": len(context) - 5}},
            )
        )
        context = [*context, *response, *chance.choices(range(50_000), k=5)]
    return Trajectory("s", "tree", tuple(traces), builder_version="1")


def test_a_tree_is_packed_once_and_comes_back_whole() -> None:
    upload = SessionUpload(b"{}", a_comb(40, 2000))
    sent = pack_upload(upload)
    assert unpack_upload(sent) == upload
    shared, plain = len(decompressed(sent)), len(encode(upload))
    assert shared < plain / 10
    assert len(sent) <= shared


def test_unpacking_does_not_expand_it() -> None:
    trajectory = unpack_upload(pack_upload(SessionUpload(b"{}", a_comb(40, 2000)))).trajectory
    assert trajectory is not None
    stored = decode(packed(trajectory), StoredTrajectory)
    assert all(len(trace.prompt_ids) < 100 for trace in stored.traces[1:])


def test_a_plain_upload_of_an_older_node_is_read() -> None:
    upload = SessionUpload(b"{}", a_comb(3, 10))
    assert unpack_upload(encode(upload)) == upload
    assert unpack_upload(encode(SessionUpload(b"{}", None))) == SessionUpload(b"{}", None)
    assert unpacked(encode(a_comb(1, 10))) == unpacked(compressed(packed(a_comb(1, 10)))) == a_comb(1, 10)


@given(data=st.binary(max_size=3000))
def test_compression_loses_nothing(data: bytes) -> None:
    assert is_compressed(compressed(data))
    assert decompressed(compressed(data)) == data


@pytest.mark.parametrize("frames", [1, 3])
def test_the_limit_is_of_what_comes_out(frames: int) -> None:
    data = zstandard.ZstdCompressor().compress(b"\0" * 1000) * frames
    assert len(decompressed(data, 1000 * frames)) == 1000 * frames
    with pytest.raises(TooLarge, match=f"more than {1000 * frames - 1} bytes"):
        decompressed(data, 1000 * frames - 1)


def test_plain_data_has_the_same_limit() -> None:
    with pytest.raises(TooLarge):
        decompressed(b"x" * 11, 10)
    assert decompressed(b"x" * 10, 10) == b"x" * 10


@pytest.mark.parametrize("damage", ["cut", "garbage after it", "a window of a gigabyte"])
def test_a_damaged_frame_is_no_upload(damage: str) -> None:
    whole = pack_upload(SessionUpload(b"{}", a_comb(3, 100)))
    hostile = {
        "cut": whole[:-20],
        "garbage after it": whole + b"garbage",
        "a window of a gigabyte": b"\x28\xb5\x2f\xfd" + bytes([0x00, (30 - 10) << 3]) + b"\x01\x00\x00",
    }
    with pytest.raises((ValueError, RuntimeError), match=r"damaged|truncated"):
        unpack_upload(hostile[damage], 10_000_000)


@pytest.mark.parametrize("limit_bytes", [None, 4000, 10_000])
def test_a_damaged_byte_is_noticed(limit_bytes: int | None) -> None:
    data = random.Random(0).randbytes(4000)  # stored as it is: nothing else would notice
    whole = compressed(data)
    assert decompressed(whole, limit_bytes) == data
    damaged = bytearray(whole)
    damaged[2000] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        decompressed(bytes(damaged), limit_bytes)
