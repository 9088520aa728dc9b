"""One trace for each call, with its whole prompt: nothing is merged.

The baseline: exact like `prefix_merging`, but a conversation of T calls has T prompts, so the size is quadratic.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

from polar.builders.chains import breaks_of
from polar.builders.drops import DropRules
from polar.builders.layout import lay_out
from polar.builders.links import link_calls
from polar.builders.statistics import trajectory_of
from polar.types import Call, Trajectory

VERSION = "2"
"""Changes when the same calls are built differently."""


class PerRequest:
    Options: type[BaseModel] = DropRules

    def __init__(self, options: DropRules) -> None:
        self._rules = options

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        links = link_calls(calls, self._rules)
        trainable = [link for link in links if link.verdict.trainable]
        traces = [lay_out(session_id, (link,), index) for index, link in enumerate(trainable)]
        return trajectory_of(session_id, "per_request", links, traces, breaks_of(links, chains=()), VERSION)
