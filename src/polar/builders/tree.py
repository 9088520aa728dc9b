"""The forest as it is: traces that branch off other traces, and say where.

The same chains as `prefix_merging`, each sampled token trainable once and each trace with its whole context. What
a branch shares with the trace it left is held once: siblings have one prompt between them, and the traces file
keeps of each branch only what is its own (`store/trajectories.py`). A trainer that can compute a shared prefix
once finds in `metadata["branch"]` which trace begins alike, and for how many tokens; one that cannot takes the
traces as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from polar.builders.chains import breaks_of, cut_into_chains
from polar.builders.drops import DropRules
from polar.builders.layout import Stem, lay_out
from polar.builders.links import Link, link_calls
from polar.builders.statistics import trajectory_of
from polar.types import Call, TokenIds, Trajectory

VERSION = "1"
"""Changes when the same calls come out in another way."""


class Tree:
    Options: type[BaseModel] = DropRules

    def __init__(self, options: DropRules) -> None:
        self._rules = options

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        links = link_calls(calls, self._rules)
        chains = cut_into_chains(links)
        stems = _Stems(links, chains)
        traces = [lay_out(session_id, chain, index, stems.of(chain[0])) for index, chain in enumerate(chains)]
        return trajectory_of(session_id, "tree", links, traces, breaks_of(links, chains), VERSION)


class _Stems:
    """What each trace has from the one it branches off."""

    def __init__(self, links: Sequence[Link], chains: Sequence[Sequence[Link]]) -> None:
        self._trace_of = {link: index for index, chain in enumerate(chains) for link in chain}
        self._nearest: dict[Link, Link | None] = {}
        """The last call up to this one that stands in a trace."""
        for link in links:
            above = self._nearest[link.continued] if link.continued is not None else None
            self._nearest[link] = link if link in self._trace_of else above
        self._prompts: dict[Link, TokenIds] = {}

    def of(self, first: Link) -> Stem | None:
        parent = first.continued
        nearest = self._nearest[parent] if parent is not None else None
        if parent is None or nearest is None:
            return None
        return Stem(self._trace_of[nearest], nearest.tokens, self._shared(parent))

    def _shared(self, parent: Link) -> TokenIds:
        """Prompt and completion of the call that several go on from, put together once for all of them."""
        if parent not in self._prompts:
            self._prompts[parent] = parent.prompt_ids() + parent.call.completion_ids
        return self._prompts[parent]
