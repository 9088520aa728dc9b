"""Chains of a session's calls, as a person reads them: each call follows the reply of the one before.

Every call is in one chain. Builders cut traces from the same forest, and leave out what cannot be trained on
(`builders/chains.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from polar.types import Call


class Chain(NamedTuple):
    """Calls of which each follows the reply of the one before."""

    calls: tuple[Call, ...]
    parent: Call | None
    """The call of another chain that its first call follows."""


def chains_of(calls: Sequence[Call]) -> list[Chain]:
    """In the order of their first calls. `calls`: parents before children.

    Where several calls follow one reply, one of them, the heir, stays in the chain; the others begin chains. The
    heir continues the parent's tokens if any does; it has the parent's kind if any has, so that a sub-agent
    does not take over the agent's chain; of several the one with the longest chain, then the earliest."""
    by_id = {call.call_id: call for call in calls}
    children: defaultdict[str, list[Call]] = defaultdict(list)
    length: dict[str, int] = {}
    heirs: dict[str, Call] = {}
    # From the end: the chain of each child is known before its parent chooses.
    for call in reversed(calls):
        earliest_first = reversed(children[call.call_id])
        heir = max(earliest_first, key=lambda child: _claim(child, call, length), default=None)
        length[call.call_id] = 1 + (length[heir.call_id] if heir else 0)
        if heir is not None:
            heirs[call.call_id] = heir
        if call.parent_id in by_id:
            children[call.parent_id].append(call)
    inherited = {heir.call_id for heir in heirs.values()}
    return [_chain(call, heirs, by_id) for call in calls if call.call_id not in inherited]


def _claim(child: Call, parent: Call, length: dict[str, int]) -> tuple[bool, bool, int]:
    return child.continues, child.kind == parent.kind, length[child.call_id]


def _chain(first: Call, heirs: dict[str, Call], by_id: dict[str, Call]) -> Chain:
    chain = [first]
    while (heir := heirs.get(chain[-1].call_id)) is not None:
        chain.append(heir)
    return Chain(tuple(chain), by_id.get(first.parent_id or ""))
