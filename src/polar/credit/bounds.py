"""What of a trace a trainer takes: no more tokens than its model holds, none from a policy that is too old."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import msgspec

from polar.credit.advantages import CreditedTrace
from polar.types import Trace


def truncated(trace: Trace, max_tokens: int) -> Trace | None:
    """The trace with at most `max_tokens` ids of prompt and response. Only the end is cut: every token that is
    left still stands after exactly the tokens it was sampled after. None if the prompt leaves no trainable
    token."""
    room = max_tokens - len(trace.prompt_ids)
    if room >= len(trace.response_ids):
        return trace
    if room < 1 or not any(trace.loss_mask[:room]):
        return None
    spans = tuple(span.shortened(min(span.length, room - span.start)) for span in trace.spans if span.start < room)
    return msgspec.structs.replace(
        trace,
        response_ids=trace.response_ids[:room],
        loss_mask=trace.loss_mask[:room],
        logprobs=trace.logprobs[:room],
        spans=spans,
    )


def without_stale(trace: Trace, ages: Mapping[str, int], max_age: int) -> Trace:
    """The trace with the mask 0 on tokens whose policy version is older than `max_age` updates.

    `ages`: updates since each version was replaced; 0 is the current one. A version that is missing counts as too
    old. The tokens stay as context of later ones."""
    mask, logprobs = trace.loss_mask[:], trace.logprobs[:]
    for span in trace.spans:
        for part in span.versions:
            if ages.get(part.version, max_age + 1) > max_age:
                start = span.start + part.start
                for position in range(start, start + part.length):
                    mask[position], logprobs[position] = 0, 0.0
    return trace if mask == trace.loss_mask else msgspec.structs.replace(trace, loss_mask=mask, logprobs=logprobs)


def oldest_age(trace: Trace, ages: Mapping[str, int]) -> int | None:
    """The age of the oldest version that sampled a token of the trace; None if a version is not known."""
    versions = trace.policy_versions
    if not versions or any(version not in ages for version in versions):
        return None
    return max(ages[version] for version in versions)


def ages_by_number(trace: Trace, version: str) -> dict[str, int]:
    """The ages of a trace's versions, if versions are whole numbers that count updates. Others are missing, and so
    count as too old."""
    if not version.isdecimal():
        return {}
    return {known: int(version) - int(known) for known in trace.policy_versions if known.isdecimal()}


def within_bounds(
    item: CreditedTrace, *, max_tokens: int | None = None, max_age: int | None = None, version: str = ""
) -> CreditedTrace | None:
    """What of a credited trace a trainer takes; None: nothing to train on. `version`: the policy's current one, a
    whole number. The advantage is not computed again: the whole session earned its reward."""
    trace: Trace | None = item.trace
    if max_age is not None:
        trace = without_stale(trace, ages_by_number(trace, version), max_age)
    if max_tokens is not None:
        trace = truncated(trace, max_tokens)
    if trace is None or not trace.trainable_tokens:
        return None
    if trace is item.trace:
        return item
    advantages = item.advantages[: len(trace.response_ids)]
    kept = (one if trained else 0.0 for one, trained in zip(advantages, trace.loss_mask, strict=True))
    return CreditedTrace(trace, array("d", kept))
