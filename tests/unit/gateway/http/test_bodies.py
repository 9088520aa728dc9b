"""Packed request bodies, and what a sender cannot do with them."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import orjson
import pytest
import zstandard

from polar.gateway.dialects.problems import Problem
from polar.gateway.http.bodies import MOST_VALUES, decompressed, read_values

BODY = b'{"model": "polar", "messages": []}'
SPOKEN = {"model": "polar", "messages": []}
LIMIT = 10_000


def read_json(body: bytes, encoding: str, limit_bytes: int) -> dict[str, Any]:
    return read_values(decompressed(body, encoding, limit_bytes), MOST_VALUES)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED = {
    "": BODY,
    "identity": BODY,
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "zstd": zstandard.compress(BODY),
    "ZSTD": zstandard.compress(BODY),
    "gzip, zstd": zstandard.compress(gzip.compress(BODY)),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_a_packed_body_is_decompressed(encoding: str) -> None:
    assert read_json(PACKED[encoding], encoding, LIMIT) == SPOKEN


def test_deflate_without_its_frame_is_deflate_too() -> None:
    assert read_json(raw_deflate(BODY), "deflate", LIMIT) == SPOKEN


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, zstandard.compress])
def test_a_small_body_that_unpacks_to_a_large_one_is_refused(pack: object) -> None:
    bomb = pack(b'{"a": "' + b" " * 50_000_000 + b'"}')  # pyright: ignore
    assert len(bomb) < 100_000
    encoding = {gzip.compress: "gzip", zlib.compress: "deflate"}.get(pack, "zstd")  # pyright: ignore
    with pytest.raises(Problem) as refused:
        read_json(bomb, encoding, LIMIT)
    assert (refused.value.status, refused.value.code) == (413, "request_too_large")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("body", [b"not packed at all", b""])
def test_a_body_that_is_not_what_it_says_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        read_json(body, encoding, LIMIT)
    assert refused.value.status == 400


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_packed_body_that_is_cut_off_is_refused(encoding: str) -> None:
    with pytest.raises(Problem) as refused:
        read_json(PACKED[encoding][:-9], encoding, LIMIT)
    assert refused.value.status == 400


def test_the_error_for_an_unknown_encoding_lists_the_known_ones() -> None:
    with pytest.raises(Problem) as refused:
        read_json(BODY, "br", LIMIT)
    assert refused.value.status == 415
    assert "gzip, deflate, zstd" in refused.value.message


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b'"text"', b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        read_json(body, "", LIMIT)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [b'{"a":[%s[]]}' % (b"[]," * 70_000), b'{"a":[%s1]}' % (b"1," * 140_000), b'{"a":%s}' % (b'{"b":' * 70_000)],
    ids=["lists", "numbers", "unfinished objects"],
)
def test_more_values_than_any_harness_sends_are_refused_before_they_are_made(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        read_json(body, "", len(body))
    assert (refused.value.status, refused.value.code) == (413, "request_too_large")


def test_what_stands_in_a_text_is_no_value() -> None:
    body = orjson.dumps({"content": '[{"a": "\\", ' * 70_000})
    assert read_json(body, "", len(body)) == orjson.loads(body)
