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
from polar.types import Call, Dropped, Trace

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


def with_losses(links: Sequence[Link], traces: Sequence[Trace]) -> list[Link]:
    """The links with the trainable tokens that later calls of their traces have overwritten."""
    kept = {span.call_id: span.length for trace in traces for span in trace.spans}
    losses = ((link, _lost(link, kept.get(link.call_id, 0))) for link in links)
    return [replace(link, lost=lost) if lost else link for link, lost in losses]


def _lost(link: Link, kept: int) -> tuple[Dropped, ...]:
    """Only trainable tokens: the others are dropped already, for another reason."""
    lost: list[Dropped] = []
    for trainable, run in groupby(range(kept, len(link.verdict.mask)), key=link.verdict.mask.__getitem__):
        positions = list(run)
        if trainable:
            lost.append(Dropped(link.call_id, positions[0], len(positions), "healed"))
    return tuple(lost)
