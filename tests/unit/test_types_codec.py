"""The binary form: compact, little-endian, exact."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.types import Logprobs, LossMask, TokenIds, logprobs, loss_mask, token_ids
from polar.types.codec import decode, encode


class Arrays(msgspec.Struct):
    ids: TokenIds
    values: Logprobs
    mask: LossMask


def arrays(ids: list[int], values: list[float], mask: list[int]) -> Arrays:
    return Arrays(token_ids(ids), logprobs(values), loss_mask(mask))


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1)),
    st.lists(st.floats(width=32, allow_nan=False)),
    st.lists(st.integers(-128, 127)),
)
def test_arrays_come_back_exactly(ids: list[int], values: list[float], mask: list[int]) -> None:
    given_arrays = arrays(ids, values, mask)
    assert decode(encode(given_arrays), Arrays) == given_arrays


def test_nan_and_infinity_survive() -> None:
    stored = decode(encode(arrays([], [math.nan, -math.inf], [])), Arrays)
    assert math.isnan(stored.values[0])
    assert stored.values[1] == -math.inf


def test_an_id_costs_four_bytes_a_logprob_four_a_mask_bit_one() -> None:
    per_token = (
        len(encode(arrays([7] * 1100, [-1.0] * 1100, [1] * 1100)))
        - len(encode(arrays([7] * 100, [-1.0] * 100, [1] * 100)))
    ) / 1000
    assert per_token == pytest.approx(9.0, abs=0.02)


def test_ids_lie_little_endian_in_the_blob() -> None:
    assert b"\x01\x02\x00\x00" in encode(arrays([0x0201], [], []))


def test_what_has_no_binary_form_is_refused() -> None:
    class Odd(msgspec.Struct):
        value: object

    with pytest.raises(NotImplementedError, match="complex"):
        encode(Odd(1j))


def test_bytes_that_are_no_whole_number_of_ids_are_refused() -> None:
    blob = msgspec.msgpack.encode({"ids": msgspec.msgpack.Ext(1, b"abc"), "values": None, "mask": None})
    with pytest.raises(ValueError, match="multiple"):
        decode(blob, Arrays)
