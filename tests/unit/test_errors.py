"""`boundary` names the place of a failure, and only that."""

from __future__ import annotations

import asyncio

import pytest

from polar.errors import ContextOverflow, EngineError, SessionError, boundary, failure_of


def test_a_plain_error_gets_its_place() -> None:
    with pytest.raises(SessionError) as caught, boundary("builder"):
        raise ValueError("two tokens too many")
    failure = caught.value.failure
    assert (failure.where, failure.type, failure.message) == ("builder", "ValueError", "two tokens too many")
    assert not failure.agent
    assert str(caught.value) == "builder: two tokens too many"


def test_the_innermost_place_stays() -> None:
    with pytest.raises(SessionError) as caught, boundary("outer"), boundary("inner"):
        raise KeyError("x")
    assert caught.value.failure.where == "inner"


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError, KeyboardInterrupt])
def test_deadlines_and_cancellation_pass_unnamed(error: type[BaseException]) -> None:
    with pytest.raises(error), boundary("x"):
        raise error


def test_an_error_without_words_is_named_by_its_type() -> None:
    assert failure_of("x", ValueError()).message == "ValueError"


def test_a_message_has_a_bound() -> None:
    assert len(failure_of("x", ValueError("a" * 100_000)).message) == 4000


def test_an_overflow_is_the_engines_error_with_both_numbers() -> None:
    error = ContextOverflow(9000, 8192)
    assert isinstance(error, EngineError)
    assert "9000" in str(error) and "8192" in str(error)
