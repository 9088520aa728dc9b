"""A chain of calls as one trace; each token is copied once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from polar.builders.links import Link
from polar.types import Span, TokenIds, Trace, logprobs, loss_mask, token_ids
from polar.types.shared_ids import SharedIds, as_ids


class _Response:
    """The part of a trace after its prompt, while it is built."""

    def __init__(self) -> None:
        self.ids = token_ids()
        self.mask = loss_mask()
        self.logprobs = logprobs()
        self.spans: list[Span] = []

    def add_context(self, ids: TokenIds) -> None:
        self.ids.extend(ids)
        self.mask.extend(repeat(0, len(ids)))
        self.logprobs.extend(repeat(0.0, len(ids)))

    def add_completion(self, link: Link) -> None:
        call = link.call
        start, length = len(self.ids), len(call.completion_ids)
        self.spans.append(Span(call.call_id, start, length, call.policy_version, call.policy_spans))
        self.ids.extend(call.completion_ids)
        self.mask.extend(link.verdict.mask)
        self.logprobs.extend(link.verdict.logprobs)

    def overwrite(self, tokens: int) -> None:
        """Removes the last tokens. A call without remaining tokens has no span."""
        size = len(self.ids) - tokens
        del self.ids[size:], self.mask[size:], self.logprobs[size:]
        while self.spans and self.spans[-1].start + self.spans[-1].length > size:
            last = self.spans.pop()
            if last.start < size:
                self.spans.append(last.shortened(size - last.start))


class BranchPoint(NamedTuple):
    """Where a trace branches off another."""

    trace: int
    tokens: int
    """Number of tokens it begins with in common with `trace`."""
    prompt_ids: SharedIds
    """The shared part of the first call's prompt; the rest of it is in the response."""


def lay_out(session_id: str, chain: Sequence[Link], trace_index: int, branch: BranchPoint | None = None) -> Trace:
    """The prompt of the first call, its completion, what is new in the second's prompt, its completion, ... With a
    branch point, the rest of the first prompt is in the response too, as context."""
    response = _Response()
    if branch:
        response.add_context(chain[0].prompt_after(len(branch.prompt_ids)))
    response.add_completion(chain[0])
    for link in chain[1:]:
        new_ids = link.call.new_prompt_ids
        if link.repair:
            response.overwrite(link.repair.overwritten)
            new_ids = new_ids[link.repair.skipped :]
        response.add_context(new_ids)
        response.add_completion(link)
    return Trace(
        session_id=session_id,
        prompt_ids=as_ids(branch.prompt_ids) if branch else chain[0].prompt_ids(),
        response_ids=response.ids,
        loss_mask=response.mask,
        logprobs=response.logprobs,
        spans=tuple(response.spans),
        kind=next(link.call.kind for link in chain if link.verdict.trainable),
        context_exact=not any(link.repair and link.repair.how == "spliced" for link in chain[1:]),
        metadata={
            "calls": [link.call_id for link in chain],
            "trace_index": trace_index,
            **({"branch": {"trace": branch.trace, "tokens": branch.tokens}} if branch else {}),
        },
    )
