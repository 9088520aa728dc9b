"""A prompt that the engine laid out, held against the tokens it should go on from.

In chat mode nothing makes a prompt begin with its parent's tokens, so it is looked at afterwards, token for token.
Where it does not, the first difference and both texts are kept, and the call starts a branch of its own.
"""

from __future__ import annotations

from polar.tokens.forest import Attachment, CallForest
from polar.tokens.prompt_builder import PreparedPrompt, branched, continued
from polar.types import Drift, TokenIds

SHOWN_CHARACTERS = 200
"""Of each text."""
CHUNK_TOKENS = 4096
"""Compared at once."""
UNREADABLE = "\ufffd"
"""What tokens decode to that are not whole characters."""


class Departure:
    """A prompt that leaves its parent's tokens. What the tokens say is the engine's to tell; see `explained`."""

    def __init__(self, place: Attachment, expected_ids: TokenIds, prompt_ids: TokenIds) -> None:
        self.place = place
        self.prompt_ids = prompt_ids
        self.position = first_difference(expected_ids, prompt_ids)
        self.expected_ids = expected_ids[self.position :]
        self.found_ids = prompt_ids[self.position :]


def compared(forest: CallForest, place: Attachment, prompt_ids: TokenIds) -> PreparedPrompt | Departure:
    """How the prompt of a request hangs together with what came before."""
    if place.parent is None:
        return branched(place, prompt_ids)
    expected_ids = forest.prompt_ids(place.parent) + place.parent.call.completion_ids
    if prompt_ids[: len(expected_ids)] == expected_ids:
        return continued(place, prompt_ids, len(prompt_ids) - len(expected_ids))
    return Departure(place, expected_ids, prompt_ids)


def drifted(departure: Departure) -> PreparedPrompt:
    """The prompt on a branch of its own, as long as nobody has said what the tokens say."""
    return branched(departure.place, departure.prompt_ids, Drift("drifted", departure.position, "", ""))


def explained(departure: Departure, expected: str, found: str) -> PreparedPrompt:
    """The same with why. The texts are of `expected_ids` and `found_ids`: a prompt that says the same and goes on
    is the same text in other tokens."""
    said = expected.strip(UNREADABLE)
    drift = Drift(
        kind="retokenised" if found.strip(UNREADABLE).startswith(said) else "rewritten",
        position=departure.position,
        expected=expected[:SHOWN_CHARACTERS],
        found=found[:SHOWN_CHARACTERS],
    )
    return branched(departure.place, departure.prompt_ids, drift)


def first_difference(one: TokenIds, other: TokenIds) -> int:
    """How many tokens both begin with."""
    size = min(len(one), len(other))
    for start in range(0, size, CHUNK_TOKENS):
        left, right = one[start : start + CHUNK_TOKENS], other[start : start + CHUNK_TOKENS]
        if left != right:
            pairs = enumerate(zip(left, right, strict=False))
            return min(size, start + next((index for index, (a, b) in pairs if a != b), CHUNK_TOKENS))
    return size
