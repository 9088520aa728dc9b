"""How a chain may go on to a call whose prompt does not begin with the tokens it follows.

An engine that lays prompts out itself writes the conversation anew for each call: a reply may come back in other
tokens, or without its reasoning. `fork` starts a trace there and loses nothing. `heal` and `splice` go on in the
same one, each at its price; docs/design/drift.md has the rules and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from polar.builders.drops import DropRules
from polar.builders.links import Link, Mend, Mending
from polar.tokens.sequences import first_difference
from polar.types import Call, Dropped

DriftRule = Literal["fork", "heal", "splice"]


class DriftOptions(DropRules):
    """Options of a builder that merges calls."""

    drift: DriftRule = "fork"
    """What becomes of a call that follows another, but not token for token. fork: a trace of its own. heal: what
    differs is overwritten by the later prompt and not trained on. splice: the reply stays beside a context it was
    not followed by, and the trace is marked inexact; for comparison only."""


def mending_of(rule: DriftRule) -> Mending | None:
    return {"fork": None, "heal": heal, "splice": splice}[rule]


def heal(parent: Link, call: Call) -> Mend | None:
    """The trace becomes the call's real prompt: what the parent's tokens and it begin with stays, the rest is
    overwritten."""
    if not is_next_turn(parent.call, call):
        return None
    kept = first_difference(parent.prompt_ids() + parent.call.completion_ids, call.new_prompt_ids)
    return Mend(overwritten=parent.tokens - kept, skipped=kept, how="healed")


def splice(parent: Link, call: Call) -> Mend | None:
    """The parent's reply stays as it was sampled, and what the prompt has after that turn's end follows it. Where
    the prompt begins otherwise, or nothing says where the turn ends, there is no such place."""
    before = parent.call
    if not is_next_turn(before, call) or before.finish_reason not in ("stop", "tool_calls"):
        return None
    prompt_ids, later_ids = parent.prompt_ids(), call.new_prompt_ids
    if not before.completion_ids or later_ids[: len(prompt_ids)] != prompt_ids:
        return None
    try:
        end = later_ids.index(before.completion_ids[-1], len(prompt_ids)) + 1
    except ValueError:
        return None
    return Mend(overwritten=0, skipped=end, how="spliced") if end < len(later_ids) else None


def is_next_turn(before: Call, call: Call) -> bool:
    """Whether the call answers what was said next in its parent's conversation. One of another kind is a summary
    or a sub-agent that was given the history; another reply in between was not sampled as it stands there."""
    echo, *new = call.new_messages or (None,)
    return (
        call.kind == before.kind
        and echo is not None
        and echo.role == "assistant"
        and bool(new)
        and all(message.role != "assistant" for message in new)
    )


def settled(links: Sequence[Link], chains: Sequence[Sequence[Link]]) -> tuple[list[Link], list[tuple[Link, ...]]]:
    """The same links and chains, in which those that were overwritten say what they lost."""
    kept: dict[Link, int] = {}
    for chain in chains:
        kept |= _kept_in(chain)
    lossy = {link: replace(link, lost=_lost(link, tokens)) for link, tokens in kept.items()}
    return (
        [lossy.get(link, link) for link in links],
        [tuple(lossy.get(link, link) for link in chain) for chain in chains],
    )


def _kept_in(chain: Sequence[Link]) -> dict[Link, int]:
    """How many sampled tokens stay of the calls that are overwritten by later ones. Up to its last call a healed
    chain is what that call's engine had, so positions are those of its prompt and completion."""
    kept: dict[Link, int] = {}
    standing: list[Link] = []
    for link in chain:
        if standing and link.mend and link.mend.overwritten:
            _overwrite(standing, kept, link.mend.skipped)
        standing.append(link)
    return kept


def _overwrite(standing: list[Link], kept: dict[Link, int], end: int) -> None:
    """Takes away what stands after the first `end` tokens."""
    while standing and _end(standing[-1], kept) > end:
        last = standing[-1]
        kept[last] = max(0, end - last.prompt_tokens)
        if kept[last]:
            return
        standing.pop()


def _end(link: Link, kept: dict[Link, int]) -> int:
    return link.prompt_tokens + kept.get(link, len(link.call.completion_ids))


def _lost(link: Link, kept: int) -> tuple[Dropped, ...]:
    """Tokens that may not be trained on are dropped already, for their own reason."""
    lost: list[Dropped] = []
    for trainable, run in groupby(range(kept, len(link.verdict.mask)), key=link.verdict.mask.__getitem__):
        positions = list(run)
        if trainable:
            lost.append(Dropped(link.call_id, positions[0], len(positions), "healed"))
    return tuple(lost)
