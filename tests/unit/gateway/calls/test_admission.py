"""What cannot fit whatever the vocabulary is refused before anybody lays it out."""

from __future__ import annotations

import pytest

from polar.engines.base import EngineInfo
from polar.gateway.calls.admission import LONGEST_TOKEN_CHARACTERS, Admission
from polar.gateway.dialects.base import Overflow
from polar.types import Message

ADMISSION = Admission(EngineInfo("scripted", "script", 10, "raw", parallel=1))
MOST = 10 * LONGEST_TOKEN_CHARACTERS


def said(role: str, *contents: str) -> tuple[Message, ...]:
    return tuple(Message(role=role, content=content) for content in contents)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("role", ["user", "tool"])
def test_more_than_the_longest_tokens_could_say_is_an_overflow(role: str) -> None:
    ADMISSION.refuse_by_size(said(role, "x" * MOST))
    with pytest.raises(Overflow) as refused:
        ADMISSION.refuse_by_size(said(role, "x" * MOST, "xx"))
    assert refused.value.prompt_tokens >= refused.value.context_tokens == 10


def test_what_a_template_may_leave_out_does_not_count() -> None:
    ADMISSION.refuse_by_size(said("user", " " * MOST * 2))
    ADMISSION.refuse_by_size(said("assistant", "x" * MOST * 2))
