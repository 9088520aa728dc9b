"""Cuts the forest of calls into chains, each of which becomes one trace.

A call is in at most one chain. If several calls continue the same one, its **heir** continues the chain and the
others start new chains, with the shared tokens as their prompt. The heir is the earliest child of the parent's
kind, so that a sub-agent or a summary that was given the agent's history does not take over the agent's chain; if
no child has that kind, the earliest. A branch without trainable tokens is never an heir and in no chain, so an
abandoned retry does not split a conversation. A call that is repaired (`drift.py`) is an heir only if no call
continues the parent's tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from polar.builders.links import Link
from polar.types import Break

Heirs = dict[Link, Link]


def cut_into_chains(links: Sequence[Link]) -> list[tuple[Link, ...]]:
    """Chains in the order in which their first calls arrived; each ends with a trainable call."""
    heirs, live = _heirs_of(links)
    inherited = set(heirs.values())
    whole = [tuple(_follow(link, heirs)) for link in links if link in live and link not in inherited]
    if not any(link.repair for link in links):
        return whole
    arrived = {link: number for number, link in enumerate(links)}
    return sorted((part for chain in whole for part in _cut(chain)), key=lambda chain: arrived[chain[0]])


def breaks_of(links: Sequence[Link], chains: Sequence[Sequence[Link]]) -> tuple[Break, ...]:
    """Every call that has a parent and nevertheless starts a trace, or would if it were trainable; and every
    repaired call."""
    starts = {chain[0] for chain in chains}
    merged = {link for chain in chains for link in chain[1:]}
    reasons = (
        (link, _repair_reason(link) if link in merged else link.break_reason() or _branch_reason(link, starts))
        for link in links
    )
    return tuple(Break(link.call_id, link.call.parent_id, reason) for link, reason in reasons if reason)


def _repair_reason(link: Link) -> str:
    return f"{link.break_reason()} ({link.repair.how})" if link.repair else ""


def _branch_reason(link: Link, starts: set[Link]) -> str:
    if link.continued is None or link not in starts:
        return ""
    return "fork" if link.continued.proven else "parent_unproven"


def _heirs_of(links: Sequence[Link]) -> tuple[Heirs, set[Link]]:
    """Heirs, and the links with something trainable in their branch. Children come after their parents, so one
    pass from the end sees each branch before its root."""
    heirs: Heirs = {}
    live: set[Link] = set()
    children: defaultdict[Link, list[Link]] = defaultdict(list)
    for link in reversed(links):
        heir = _heir(link, children.pop(link, []))
        if heir is not None:
            heirs[link] = heir
        if heir is None and not link.verdict.trainable:
            continue
        live.add(link)
        if link.follows is not None:
            children[link.follows].append(link)
    return heirs, live


def _heir(parent: Link, live_children: list[Link]) -> Link | None:
    """A call whose prompt is not proven has no heir. Children are listed latest first."""
    if not parent.proven:
        return None
    earliest_first = reversed(live_children)
    return min(
        earliest_first,
        key=lambda child: (child.repair is not None, child.call.kind != parent.call.kind),
        default=None,
    )


def _follow(start: Link, heirs: Heirs) -> Iterator[Link]:
    link: Link | None = start
    while link is not None:
        yield link
        link = heirs.get(link)


def _cut(chain: Sequence[Link]) -> Iterator[tuple[Link, ...]]:
    """Cuts the chain before each call that would overwrite all its trainable tokens: a new trace loses nothing."""
    part: list[Link] = []
    first_trained: int | None = None
    for link in chain:
        if link.repair and (first_trained is None or part[-1].tokens - link.repair.overwritten <= first_trained):
            yield from _trimmed(part)
            part, first_trained = [], None
        if first_trained is None and link.verdict.trainable:
            first_trained = link.prompt_tokens + link.verdict.mask.index(1)
        part.append(link)
    yield from _trimmed(part)


def _trimmed(part: list[Link]) -> Iterator[tuple[Link, ...]]:
    """Without the calls after the last trainable one; nothing if there is none."""
    trainable = [position for position, link in enumerate(part) if link.verdict.trainable]
    if trainable:
        yield tuple(part[: trainable[-1] + 1])
