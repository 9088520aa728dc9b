"""The default builder: a chain of calls that continue each other becomes one trace.

A conversation of T calls costs the tokens of its last context, not T prompts. Calls are merged only if the tokens
of one begin the prompt of the next, which the stored digest proves; any other call starts a trace, unless the
option `drift` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from polar.builders.chains import breaks_of, cut_into_chains
from polar.builders.drift import DriftOptions, DriftRule, repair_rule, with_losses
from polar.builders.drops import DropRules
from polar.builders.layout import lay_out
from polar.builders.links import link_calls
from polar.builders.statistics import trajectory_of
from polar.types import Call, Trajectory

VERSION = "2"
"""Changes when the same calls are built differently."""


class PrefixMerging:
    Options: type[BaseModel] = DriftOptions

    def __init__(self, options: DropRules) -> None:
        self._rules = options
        self._drift: DriftRule = options.drift if isinstance(options, DriftOptions) else "fork"

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        links = link_calls(calls, self._rules, repair_rule(self._drift))
        chains = cut_into_chains(links)
        traces = [lay_out(session_id, chain, index) for index, chain in enumerate(chains)]
        breaks = breaks_of(links, chains)
        version = VERSION if self._drift == "fork" else f"{VERSION} {self._drift}"
        return trajectory_of(session_id, "prefix_merging", with_losses(links, traces), traces, breaks, version)
