"""A prompt is written as `orjson` writes the whole list, whatever was written before it; memory is bounded."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.engines.remote import engine as remote_engine
from polar.engines.remote.engine import MOST_PROMPTS, PromptJson
from polar.types import TokenIds, token_ids

PROMPTS = st.lists(st.integers(0, 2**31 - 1), max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 8), st.integers(0, 14), PROMPTS), max_size=12)
"""Of which session, which earlier prompt to begin with and how much of it, and what follows."""


def written(prompts: PromptJson, ids: TokenIds, session: str = "s") -> bytes:
    return orjson.dumps(prompts.write(session, ids))


def plain(ids: TokenIds) -> bytes:
    return orjson.dumps(ids.tolist())


@pytest.fixture(autouse=True)
def none_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "SHORT_TOKENS", 0)


@given(STEPS, st.integers(0, 200))
def test_every_prompt_is_written_as_if_it_were_the_first(
    steps: list[tuple[str, int, int, list[int]]], most_bytes: int
) -> None:
    prompts, reported = PromptJson(most_bytes), [token_ids()]
    for session, earlier, kept, new in steps:
        ids = reported[earlier % len(reported)][:kept] + token_ids(new)
        reported.append(ids)
        assert written(prompts, ids, session) == plain(ids)
        assert prompts.size_bytes <= most_bytes


def test_what_a_prompt_goes_on_from_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, counts = PromptJson(), list[int]()
    first, other = token_ids(range(1000)), token_ids(range(5, 700))
    written(prompts, first)
    written(prompts, other)  # a sub-agent in between
    real = orjson.dumps
    monkeypatch.setattr(remote_engine.orjson, "dumps", lambda ids: counts.append(len(ids)) or real(ids))  # pyright: ignore
    prompts.write("s", first + token_ids([7, 8]))
    prompts.write("s", other + token_ids([9]))
    assert counts == [2, 1]


def test_another_session_shares_nothing() -> None:
    """Its ids would do as well; but whose prompts are in memory is no other session's business."""
    prompts = PromptJson()
    written(prompts, token_ids(range(1000)), "a")
    before = prompts.size_bytes
    written(prompts, token_ids(range(1000)), "b")
    assert prompts.size_bytes == 2 * before


def test_a_session_keeps_few_prompts() -> None:
    prompts = PromptJson()
    for number in range(3 * MOST_PROMPTS):
        written(prompts, token_ids([number, *range(100)]))
    largest = len(plain(token_ids([3 * MOST_PROMPTS, *range(100)]))) + 101 * 4
    assert prompts.size_bytes <= MOST_PROMPTS * largest


def test_the_session_asked_least_recently_is_given_up_first() -> None:
    ids = token_ids(range(100))
    one = len(plain(ids)) + 4 * len(ids)
    prompts = PromptJson(most_bytes=2 * one)
    for session in ("a", "b", "a", "c"):
        written(prompts, ids, session)
    assert list(prompts._sessions) == ["a", "c"]  # pyright: ignore[reportPrivateUsage]


def test_short_prompts_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_engine, "SHORT_TOKENS", 3)
    prompts = PromptJson()
    assert written(prompts, token_ids([1, 2, 3])) == b"[1,2,3]"
    assert prompts.size_bytes == 0
