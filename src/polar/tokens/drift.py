"""Chat mode: a prompt that the engine rendered, compared with the tokens it should continue.

Nothing forces such a prompt to begin with its parent's tokens, so it is compared afterwards, token by token. If it
differs, the first difference and both texts are kept, and the call starts a new branch.
"""

from __future__ import annotations

from polar.tokens.forest import Attachment, CallForest, Prompt, branched, continued
from polar.tokens.sequences import first_difference
from polar.types import Drift, TokenIds

SHOWN_CHARACTERS = 200
"""Kept of each text."""
UNREADABLE = "\ufffd"
"""What tokens that are no whole characters decode to."""


class Departure:
    """A prompt that departs from its parent's tokens. Only the engine can decode them; see `explained`."""

    def __init__(self, attachment: Attachment, expected_ids: TokenIds, prompt_ids: TokenIds) -> None:
        self.attachment = attachment
        self.prompt_ids = prompt_ids
        self.position = first_difference(expected_ids, prompt_ids)
        self.expected_ids = expected_ids[self.position :]
        self.found_ids = prompt_ids[self.position :]


def compared(forest: CallForest, attachment: Attachment, prompt_ids: TokenIds) -> Prompt | Departure:
    parent = attachment.parent
    if parent is None:
        return branched(attachment, prompt_ids)
    expected_ids = forest.prompt_ids(parent) + parent.call.completion_ids
    if prompt_ids[: len(expected_ids)] == expected_ids:
        return continued(attachment, prompt_ids, len(prompt_ids) - len(expected_ids))
    return Departure(attachment, expected_ids, prompt_ids)


def drifted(departure: Departure) -> Prompt:
    """The prompt on a new branch, as long as its texts are unknown."""
    return branched(departure.attachment, departure.prompt_ids, Drift("drifted", departure.position, "", ""))


def explained(departure: Departure, expected: str, found: str) -> Prompt:
    """The same with the decoded `expected_ids` and `found_ids`. A prompt with the same text in other tokens is
    `retokenised`, one with other text is `rewritten`."""
    same_text = found.strip(UNREADABLE).startswith(expected.strip(UNREADABLE))
    drift = Drift(
        kind="retokenised" if same_text else "rewritten",
        position=departure.position,
        expected=expected[:SHOWN_CHARACTERS],
        found=found[:SHOWN_CHARACTERS],
    )
    return branched(departure.attachment, departure.prompt_ids, drift)
