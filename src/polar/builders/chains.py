"""How the forest of calls is cut into chains, each of which becomes one trace.

A call is in at most one chain. Where several calls continue the same one, its **heir** goes on in its chain and
the others start chains of their own, with the shared tokens as their prompt. The heir is the earliest child of
the parent's own kind, so that a sub-agent or a summary seeded with the agent's history does not carry the
agent's chain away; where no child has that kind, the earliest. A branch in which nothing may be trained on is
never an heir and in no chain, so an abandoned retry does not split the conversation that went on without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from polar.builders.links import Link
from polar.types import Break

Heirs = dict[Link, Link]


def cut_into_chains(links: Sequence[Link]) -> list[tuple[Link, ...]]:
    """Chains in the order in which their first calls arrived; each ends with a call that can be trained on."""
    heirs, live = _heirs_of(links)
    inherited = set(heirs.values())
    return [tuple(_follow(link, heirs)) for link in links if link in live and link not in inherited]


def breaks_of(links: Sequence[Link], chains: Sequence[Sequence[Link]]) -> tuple[Break, ...]:
    """Every call that follows another and yet starts a trace, or would if it could be trained on."""
    starts = {chain[0] for chain in chains}
    merged = {link for chain in chains for link in chain[1:]}
    reasons = ((link, link.break_reason() or _branch_reason(link, starts)) for link in links if link not in merged)
    return tuple(Break(link.call_id, link.call.parent_id, reason) for link, reason in reasons if reason)


def _branch_reason(link: Link, starts: set[Link]) -> str:
    if link.continued is None or link not in starts:
        return ""
    return "fork" if link.continued.proven else "parent_unproven"


def _heirs_of(links: Sequence[Link]) -> tuple[Heirs, set[Link]]:
    """Heirs, and the links in whose branch something can be trained on. Children come after their parents, so
    one pass from the end sees each branch before its root."""
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
        if link.continued is not None:
            children[link.continued].append(link)
    return heirs, live


def _heir(parent: Link, live_children: list[Link]) -> Link | None:
    """Nothing is appended to a call whose own prompt is not proven. Children are listed latest first."""
    if not parent.proven:
        return None
    earliest_first = reversed(live_children)
    return min(earliest_first, key=lambda child: child.call.kind != parent.call.kind, default=None)


def _follow(start: Link, heirs: Heirs) -> Iterator[Link]:
    link: Link | None = start
    while link is not None:
        yield link
        link = heirs.get(link)
