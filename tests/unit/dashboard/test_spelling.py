"""Tokens as text where the renderer is here, else as numbers with the reason and what to do."""

from __future__ import annotations

from polar.dashboard.spelling import OF_A_SERVER, spelling_or_numbers
from polar.types import Spec, token_ids
from viewed_session import CharacterRenderer

IDS = token_ids(map(ord, "hi"))


async def test_a_renderer_spells() -> None:
    spell, note = await spelling_or_numbers(Spec(name=f"{CharacterRenderer.__module__}:CharacterRenderer"))
    assert (spell(IDS), note) == ("hi", "")


async def test_without_a_renderer_tokens_are_numbers() -> None:
    spell, note = await spelling_or_numbers(None)
    assert spell(IDS) == "104 105" and "only the engine of this run can spell them" in note


async def test_a_server_says_how_to_get_words() -> None:
    _, note = await spelling_or_numbers(None, OF_A_SERVER)
    assert "polar.toml" in note and "`polar view --server URL SESSION`" in note


async def test_a_renderer_that_is_not_here_is_named() -> None:
    spell, note = await spelling_or_numbers(Spec(name="no_such_renderer"))
    assert spell(IDS) == "104 105" and "no_such_renderer" in note
