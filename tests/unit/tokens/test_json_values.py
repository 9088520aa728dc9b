"""Values of JSON are counted without being made, whatever stands in its strings."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tokens import json_values
from polar.tokens.json_values import ValueCount, count_values, holds_more_values, most_possible

ODD = st.text(st.sampled_from([*'",[]{}:\\a', "\n", "é"]), max_size=12)
ANY = st.recursive(
    ODD | st.integers(0, 9) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD, inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "PIECE_BYTES", 7)


def containers(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, dict | list) + sum(map(containers, inner))


def commas(value: Any) -> int:
    inner = list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    return max(0, len(inner) - 1) + sum(map(commas, inner))


@given(ANY)
def test_the_count_is_exact(value: Any) -> None:
    text, lists = orjson.dumps(value), containers(value)
    marks = lists + commas(value)
    exact = ValueCount(lists, marks)
    assert count_values(text, exact) == exact
    assert exact.within(most_possible(text))
    assert not holds_more_values(text.decode(), marks)
    assert marks == 0 or holds_more_values(text.decode(), marks - 1)


@given(ANY)
def test_counting_ends_where_there_is_too_much(value: Any) -> None:
    text, lists = orjson.dumps(value), containers(value)
    for most in (ValueCount(lists - 1, len(text)), ValueCount(lists, lists + commas(value) - 1)):
        assert not count_values(text, most).within(most)


@pytest.mark.parametrize("text", [b'"' + b"\\" * 40 + b'[[[["', b'"' + b"\\\\" * 9 + b'",[[[[', b"\\" * 30, b""])
def test_runs_of_backslashes_do_no_harm(text: bytes) -> None:
    assert not holds_more_values(text.decode(), 5)
