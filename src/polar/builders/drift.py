"""How a chain may continue with a call whose prompt does not begin with the tokens before it.

An engine that renders prompts itself renders the whole conversation for each call: a reply may come back in other
tokens, or without its reasoning. `fork` starts a trace there and loses nothing. `heal` and `splice` continue the
trace, each at a cost; see docs/design/drift.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from polar.builders.drops import DropRules
from polar.builders.links import Link, Repair, RepairRule
from polar.tokens.sequences import first_difference
from polar.types import Call, Dropped

DriftRule = Literal["fork", "heal", "splice"]


class DriftOptions(DropRules):
    """Options of a builder that merges calls."""

    drift: DriftRule = "fork"
    """How to treat a call whose prompt does not begin with its parent's tokens. fork: it starts a trace. heal: the
    later prompt overwrites the tokens that differ, which are not trained on. splice: the parent's reply stays
    although the later prompt has other tokens there, and the trace is marked inexact; for comparison only."""


def repair_rule(rule: DriftRule) -> RepairRule | None:
    return {"fork": None, "heal": heal, "splice": splice}[rule]


def heal(parent: Link, call: Call) -> Repair | None:
    """The trace becomes the call's real prompt: the tokens it shares with the parent stay, the rest is
    overwritten."""
    if not is_next_turn(parent.call, call):
        return None
    kept = first_difference(parent.prompt_ids() + parent.call.completion_ids, call.new_prompt_ids)
    return Repair(overwritten=parent.tokens - kept, skipped=kept, how="healed")


def splice(parent: Link, call: Call) -> Repair | None:
    """The parent's reply stays as sampled, followed by what the prompt has after the end of that turn. None if the
    prompt begins differently, or if the end of the turn is unknown."""
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
    return Repair(overwritten=0, skipped=end, how="spliced") if end < len(later_ids) else None


def is_next_turn(before: Call, call: Call) -> bool:
    """Whether the call is the next turn of its parent's conversation. A call of another kind is a summary or a
    sub-agent that was given the history; another reply in between was not sampled here."""
    echo, *new = call.new_messages or (None,)
    return (
        call.kind == before.kind
        and echo is not None
        and echo.role == "assistant"
        and bool(new)
        and all(message.role != "assistant" for message in new)
    )


def with_losses(
    links: Sequence[Link], chains: Sequence[Sequence[Link]]
) -> tuple[list[Link], list[tuple[Link, ...]]]:
    """The same links and chains, with the tokens that overwritten calls have lost."""
    kept: dict[Link, int] = {}
    for chain in chains:
        kept |= _kept_in(chain)
    lossy = {link: replace(link, lost=_lost(link, tokens)) for link, tokens in kept.items()}
    return (
        [lossy.get(link, link) for link in links],
        [tuple(lossy.get(link, link) for link in chain) for chain in chains],
    )


def _kept_in(chain: Sequence[Link]) -> dict[Link, int]:
    """How many sampled tokens are left of each call that a later one overwrites. A healed chain equals the prompt
    and completion of its last call, so positions are counted in those."""
    kept: dict[Link, int] = {}
    standing: list[Link] = []
    for link in chain:
        if standing and link.repair and link.repair.overwritten:
            _overwrite(standing, kept, link.repair.skipped)
        standing.append(link)
    return kept


def _overwrite(standing: list[Link], kept: dict[Link, int], end: int) -> None:
    """Removes what comes after the first `end` tokens."""
    while standing and _end(standing[-1], kept) > end:
        last = standing[-1]
        kept[last] = max(0, end - last.prompt_tokens)
        if kept[last]:
            return
        standing.pop()


def _end(link: Link, kept: dict[Link, int]) -> int:
    return link.prompt_tokens + kept.get(link, len(link.call.completion_ids))


def _lost(link: Link, kept: int) -> tuple[Dropped, ...]:
    """Only trainable tokens: the others are dropped already, for another reason."""
    lost: list[Dropped] = []
    for trainable, run in groupby(range(kept, len(link.verdict.mask)), key=link.verdict.mask.__getitem__):
        positions = list(run)
        if trainable:
            lost.append(Dropped(link.call_id, positions[0], len(positions), "healed"))
    return tuple(lost)
