"""How a harness shares the context window between its history and one reply."""

from __future__ import annotations

from polar.types import Slot

MOST_REPLY_TOKENS = 32_000


def reply_tokens(slot: Slot, wanted: int | None) -> int:
    """The most tokens to ask for in one reply; if the user has no wish, a quarter of the window or 32k."""
    return wanted if wanted is not None else min(MOST_REPLY_TOKENS, slot.context_tokens // 4)
