"""The binary form of the types on the token path: msgpack with int32 ids, float32 logprobs and int8 masks.

Always little-endian, so that every node can read it.
"""

from __future__ import annotations

import sys
from array import array
from functools import cache
from threading import Lock
from typing import Any, TypeVar, cast

import msgspec

from polar.types.shared_ids import SharedIds

T = TypeVar("T")

MSGPACK = "application/vnd.msgpack"
"""The media type."""

_CODE_OF = {"i": 1, "f": 2, "b": 3}
_TYPECODE_OF = {code: typecode for typecode, code in _CODE_OF.items()}


def _little_endian(values: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values


def _encode_array(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, SharedIds):
        value = value.whole()
    if isinstance(value, array):
        values = cast("array[Any]", value)
        return msgspec.msgpack.Ext(_CODE_OF[values.typecode], _little_endian(values).tobytes())
    raise NotImplementedError(f"{type(value).__name__} has no binary form")


def _decode_array(code: int, data: memoryview) -> array[Any]:
    values: array[Any] = array(_TYPECODE_OF[code])
    values.frombytes(data)
    return _little_endian(values)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_array)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def decode(data: bytes, type: type[T]) -> T:
    with _making_a_decoder:
        decoder = _decoder(type)
    return decoder.decode(data)


@cache
def _decoder(type: type[T]) -> msgspec.msgpack.Decoder[T]:
    return msgspec.msgpack.Decoder(type, ext_hook=_decode_array)


_making_a_decoder = Lock()
"""One thread at a time makes the first decoder of a type: msgspec fills in a struct's description then, and no
other thread may read it half filled."""
