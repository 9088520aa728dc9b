"""The self-test of chat mode, with engines that fail one part of it each."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator

import pytest

from polar.engines.base import ChatPiece, ChatPrompt, Piece
from polar.engines.remote.proof import CHAT_TEXT, prove_chat
from polar.errors import ChatRefused, EngineDefect, EngineError
from polar.types import Delta, TokenIds, logprobs, token_ids

PROMPT_IDS = token_ids([1, 2])
WHOLE = Piece(token_ids([5]), logprobs([-0.5]), "stop")


class SomeEngine:
    """Says these pieces, whatever it is asked."""

    counts_by_sampling = False

    def __init__(self, *pieces: ChatPiece, text: str = f"user: {CHAT_TEXT} assistant: hi") -> None:
        self._pieces = pieces
        self._text = text
        self.asked: list[ChatPrompt] = []

    async def chat(self, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        self.asked.append(prompt)
        for piece in self._pieces:
            yield piece

    async def count(self, prompt: ChatPrompt) -> int:
        return len(PROMPT_IDS)

    async def decode(self, ids: TokenIds) -> str:
        return self._text


def first(piece: Piece) -> ChatPiece:
    return ChatPiece(piece, (Delta(content="hi"),), PROMPT_IDS)


async def test_a_good_engine_is_asked_with_and_without_tools() -> None:
    engine = SomeEngine(first(WHOLE))
    await prove_chat(engine)
    assert [len(asked.tools) for asked in engine.asked] == [0, 1]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (SomeEngine(), "did not report the ids of the prompt"),
        (SomeEngine(ChatPiece(WHOLE)), "did not report the ids of the prompt"),
        (SomeEngine(first(Piece(token_ids(), logprobs(), "stop"))), "0 ids and 0 logprobs"),
        (SomeEngine(first(Piece(token_ids([5, 6]), logprobs([-1.0]), "stop"))), "2 ids and 1 logprobs"),
        (SomeEngine(first(Piece(token_ids([5]), logprobs([math.nan]), "stop"))), "no usable logprobs"),
        (SomeEngine(first(Piece(token_ids([5]), logprobs([12.5]), "stop"))), "no usable logprobs"),
        (SomeEngine(first(Piece(token_ids([5]), logprobs([-0.5])))), "finish reason must be on the last piece"),
        (SomeEngine(first(WHOLE), text="something else"), "do not spell the message"),
    ],
    ids="nothing no-prompt no-ids unequal nan logits no-end other-text".split(),
)
async def test_an_engine_that_fails_a_part_does_not_pass(engine: SomeEngine, message: str) -> None:
    with pytest.raises(EngineDefect, match=rf"{message}.*see docs/engines.md"):
        await prove_chat(engine)


async def test_a_template_that_refuses_a_short_chat_is_reported() -> None:
    class Refusing(SomeEngine):
        async def chat(self, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
            raise ChatRefused("no chat template")
            yield  # a generator all the same

    with pytest.raises(EngineError, match=r"no chat template; see docs/engines.md"):
        await prove_chat(Refusing())


async def test_an_engine_without_chat_mode_says_so() -> None:
    with pytest.raises(EngineError, match="no chat mode"):
        await prove_chat(object())
