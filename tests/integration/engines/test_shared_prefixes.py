"""Sessions of the embedded engine that begin with the same tokens, with its real weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from contracts.engine_contract import ask, whole
from polar.engines.embedded.engine import EmbeddedEngine, EmbeddedOptions
from polar.tokens.renderers.gguf_vocabulary import Vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="session")

PREFIX = "The house by the river has a red door, two windows and a garden with apple trees. " * 20
FEW = 12
"""Tokens of a short ending, and the last one of the prefix."""


@pytest_asyncio.fixture(loop_scope="session")
async def engine(gguf: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(EmbeddedOptions(parallel=3, context_tokens=768, threads=1, gguf=gguf))
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_second_session_evaluates_only_what_is_new(engine: EmbeddedEngine, vocabulary: Vocabulary) -> None:
    prefix = vocabulary.encode(PREFIX)
    first = await whole(engine, ask([*prefix, *vocabulary.encode("Now sing.")], "one", max_tokens=2))
    before = engine.counters()
    second = await whole(engine, ask([*prefix, *vocabulary.encode("Now dance.")], "two", max_tokens=2))
    after = engine.counters()
    assert first.evaluated_tokens is not None and first.evaluated_tokens > len(prefix)
    assert second.evaluated_tokens is not None and second.evaluated_tokens <= FEW
    assert after["evaluated_tokens"] - before["evaluated_tokens"] == second.evaluated_tokens
    assert after["cached_tokens"] - before["cached_tokens"] >= len(prefix) - 1


async def test_sessions_that_start_together_evaluate_their_prefix_once(
    engine: EmbeddedEngine, vocabulary: Vocabulary
) -> None:
    prefix = vocabulary.encode(PREFIX)
    before = engine.counters()["evaluated_tokens"]
    endings = ("Now sing.", "Now dance.", "Now sleep.")
    asked = [ask([*prefix, *vocabulary.encode(text)], text, max_tokens=2) for text in endings]
    await asyncio.gather(*(whole(engine, request) for request in asked))
    assert engine.counters()["evaluated_tokens"] - before <= len(prefix) + len(endings) * FEW


async def test_a_copied_prefix_gives_the_same_logprobs_to_the_last_bit(
    engine: EmbeddedEngine, vocabulary: Vocabulary
) -> None:
    prompt = vocabulary.encode(PREFIX)
    replies = [await whole(engine, ask(prompt, name, max_tokens=8, temperature=0)) for name in ("a", "b", "c")]
    assert [reply.evaluated_tokens for reply in replies] == [len(prompt), 1, 1]
    assert replies[0].ids == replies[1].ids == replies[2].ids
    assert replies[0].logprobs == replies[1].logprobs == replies[2].logprobs


async def test_a_copied_prefix_is_no_other_prompt(engine: EmbeddedEngine, vocabulary: Vocabulary) -> None:
    """One token differs in the middle: what stands behind it is evaluated again."""
    prompt = vocabulary.encode(PREFIX)
    changed = [*prompt]
    changed[150] = vocabulary.encode(" stone")[0]
    await whole(engine, ask(prompt, "first", max_tokens=1))
    piece = await whole(engine, ask(changed, "second", max_tokens=1))
    assert piece.evaluated_tokens == len(prompt) - 150


async def test_no_saved_state_stays_behind(gguf: Path, vocabulary: Vocabulary) -> None:
    engine = EmbeddedEngine(EmbeddedOptions(parallel=1, context_tokens=768, threads=1, gguf=gguf))
    await engine.start()
    folder = engine._state_folder
    assert folder is not None
    await whole(engine, ask(vocabulary.encode(PREFIX), "one", max_tokens=1))
    assert [file.name for file in folder.iterdir()] == ["prefix-1"]
    await engine.stop()
    assert not folder.exists()
