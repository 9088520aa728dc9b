"""Which escapes of a JSON text are half a surrogate pair."""

from __future__ import annotations

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from polar.tokens.surrogates import without_lone_surrogates

UNITS = st.lists(
    st.sampled_from(["a", "\\", '"', "\ud83d", "\ude00", "\U0001f600", "\u00e9", "ud83d", "\n"]), max_size=12
)


@given(UNITS)
def test_each_half_becomes_one_replacement(units: list[str]) -> None:
    text = "".join(units)
    sound, replaced = without_lone_surrogates(json.dumps(text).encode())
    # Two halves that meet are a whole character, as UTF-16 has it.
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert orjson.loads(sound) == joined
    assert replaced == sum("\ud800" <= char <= "\udfff" for char in json.loads(json.dumps(text)))


def test_a_backslash_that_is_escaped_begins_nothing() -> None:
    assert without_lone_surrogates(rb'"\\ud83d"') == (rb'"\\ud83d"', 0)
    assert without_lone_surrogates(rb'"\\\ud83d"') == (rb'"\\\ufffd"', 1)
