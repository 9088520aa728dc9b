"""The forest as it is: traces that branch off other traces and say where.

The chains are those of `prefix_merging`: each sampled token is trainable once, and each trace has its whole
context. What a branch shares with another trace is kept once, in memory (`types/shared_ids.py`) and in the traces
file (`types/packed.py`). `metadata["branch"]` names the trace that begins alike, and for how many tokens,
for trainers that can compute a shared prefix once; others take the traces as they are. A prompt that drifts is a
branch too: it leaves where it differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, field_validator

from polar.builders.chains import breaks_of, cut_into_chains
from polar.builders.drift import DriftOptions, DriftRule, is_next_turn
from polar.builders.drops import DropRules
from polar.builders.layout import BranchPoint, lay_out
from polar.builders.links import Link, link_calls
from polar.builders.statistics import trajectory_of
from polar.tokens.sequences import first_difference
from polar.types import Call, Trajectory
from polar.types.shared_ids import SharedIds

VERSION = "2"
"""Changes when the same calls are built differently."""


class TreeOptions(DriftOptions):
    @field_validator("drift")
    @classmethod
    def _only_fork(cls, drift: DriftRule) -> DriftRule:
        if drift != "fork":
            raise ValueError(
                f"a tree branches where a prompt drifts, so there is nothing to {drift}; "
                "use the builder prefix_merging"
            )
        return drift


class Tree:
    Options: type[BaseModel] = TreeOptions

    def __init__(self, options: DropRules) -> None:
        self._rules = options

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        links = link_calls(calls, self._rules)
        chains = cut_into_chains(links)
        branches = _BranchPoints(links, chains)
        traces = [lay_out(session_id, chain, index, branches.of(chain[0])) for index, chain in enumerate(chains)]
        return trajectory_of(session_id, "tree", links, traces, breaks_of(links, chains), VERSION)


class _BranchPoints:
    """What each trace shares with the one it branches off."""

    def __init__(self, links: Sequence[Link], chains: Sequence[Sequence[Link]]) -> None:
        self._trace_of = {link: index for index, chain in enumerate(chains) for link in chain}
        self._nearest: dict[Link, Link | None] = {}
        """The nearest call, itself or an ancestor, that is in a trace."""
        self._shared: dict[Link, SharedIds] = {}
        """Prompt and completion of each call."""
        for link in links:
            continued = link.continued
            above = self._nearest[continued] if continued is not None else None
            self._nearest[link] = link if link in self._trace_of else above
            before = self._shared[continued] if continued is not None else None
            self._shared[link] = SharedIds(SharedIds(before, link.call.new_prompt_ids), link.call.completion_ids)

    def of(self, first: Link) -> BranchPoint | None:
        parent = first.parent
        nearest = self._nearest[parent] if parent is not None else None
        if parent is None or nearest is None:
            return None
        shared = self._shared[parent]
        if first.continued is None:
            tokens = self._before_drift(parent, first)
            shared = shared.first(tokens)
        return BranchPoint(self._trace_of[nearest], min(nearest.tokens, len(shared)), shared) if shared else None

    def _before_drift(self, parent: Link, first: Link) -> int:
        """How many tokens the prompt has in common with those it should continue."""
        if not (parent.proven and is_next_turn(parent.call, first.call)):
            return 0
        return first_difference(self._shared[parent].whole(), first.call.new_prompt_ids)
