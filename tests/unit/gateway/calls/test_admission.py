"""A text that fits no context in any vocabulary is refused before it is rendered."""

from __future__ import annotations

import pytest

from polar.gateway.calls.call_service import LONGEST_TOKEN_CHARACTERS, refuse_by_size
from polar.gateway.dialects.problems import Overflow
from polar.types import Message

CONTEXT_TOKENS = 10
MOST = CONTEXT_TOKENS * LONGEST_TOKEN_CHARACTERS


def said(role: str, *contents: str) -> tuple[Message, ...]:
    return tuple(Message(role=role, content=content) for content in contents)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("role", ["user", "tool"])
def test_more_than_the_longest_tokens_could_say_is_an_overflow(role: str) -> None:
    refuse_by_size(said(role, "x" * MOST), CONTEXT_TOKENS)
    with pytest.raises(Overflow) as refused:
        refuse_by_size(said(role, "x" * MOST, "xx"), CONTEXT_TOKENS)
    assert refused.value.prompt_tokens >= refused.value.context_tokens == 10


def test_what_a_template_may_leave_out_does_not_count() -> None:
    refuse_by_size(said("user", " " * MOST * 2), CONTEXT_TOKENS)
    refuse_by_size(said("assistant", "x" * MOST * 2), CONTEXT_TOKENS)
