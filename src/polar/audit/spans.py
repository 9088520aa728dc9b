"""One span of a trace held against the call it names: ids, mask, logprobs and policy versions, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from polar.types import Call, Logprobs, LossMask, PolicySpan, Span, TokenIds, Trace, Violation, logprobs

Report = Callable[[str, Violation, object, object], None]
"""Where, what, expected, found."""


class Known(Protocol):
    """What has to be known of the call."""

    @property
    def call(self) -> Call: ...
    @property
    def proven(self) -> bool: ...
    @property
    def allowed(self) -> LossMask: ...
    def count(self, position: int) -> None: ...
    def prompt_ids(self) -> TokenIds: ...


class SpanCheck:
    def __init__(self, where: str, trace: Trace, span: Span, report: Report) -> None:
        self._where = where
        self._trace = trace
        self._span = span
        self._stretch = slice(span.start, span.start + span.length)
        self._report = report

    def gap(self, end: int) -> None:
        """Between the span before and this one nothing is trained on, and nothing has a logprob."""
        between = slice(end, self._span.start)
        first = _first_of(self._trace.loss_mask[between])
        if first is not None:
            self._report(self._at(end + first), "mask", "0 outside of spans", "1")
        first = _first_of(self._trace.logprobs[between])
        if first is not None:
            self._report(self._at(end + first), "logprob", "0.0 for context", self._trace.logprobs[end + first])

    def context(self, known: Known) -> None:
        """Says where the tokens before the span leave what was sent; asked where they do."""
        found = self._trace.prompt_ids + self._trace.response_ids[: self._span.start]
        call = known.call
        where = f"{self._where}, before call {call.call_id}"
        if not known.proven:
            self._report(where, "context", _sent(call), f"{len(found)} other tokens")
            return
        sent = known.prompt_ids()
        first = _first_difference(sent, found)
        expected = f"id {sent[first]}" if first < len(sent) else f"the end of the prompt after {first} ids"
        there = f"id {found[first]}" if first < len(found) else "the call's own tokens"
        self._report(f"{where}, token {first} of the sequence", "context", expected, there)

    def sampled(self, known: Known) -> bool:
        """Checks the call's own tokens. True where some are trained on. A span may hold the first of them only;
        those it leaves out have to be in the dropped list, which the count of all tokens shows."""
        call, span = known.call, self._span
        found = self._trace.response_ids[self._stretch]
        if len(found) > len(call.completion_ids):
            expected = f"the {len(call.completion_ids)} tokens of call {call.call_id}, or the first of them"
            self._report(self._at(span.start), "span", expected, len(found))
            return False
        if len(found) < len(call.completion_ids) and self._stretch.stop == len(self._trace.response_ids):
            expected = f"the {len(call.completion_ids)} tokens of call {call.call_id}, for nothing overwrote them"
            self._report(self._at(span.start), "span", expected, len(found))
        self._versions(call)
        expected_ids = call.completion_ids[: len(found)]
        if found != expected_ids:
            first = _first_difference(expected_ids, found)
            at = self._at(span.start + first)
            self._report(at, "tokens", f"id {expected_ids[first]}", f"id {found[first]}")
        return self._trained(known)

    def _versions(self, call: Call) -> None:
        """Each token has the policy version that the call says it was sampled by."""
        span = self._span
        if span.policy_version != call.policy_version:
            self._report(self._at(span.start), "span", repr(call.policy_version), repr(span.policy_version))
        expected = list(call.policy_spans)
        if span.length < len(call.completion_ids):
            expected = [_within(part, span.length) for part in expected if part.start < span.length]
        found = list(span.policy_spans)
        if found != expected:
            first = _first_difference(expected, found)
            there = (str(each[first]) if first < len(each) else "no more versions" for each in (expected, found))
            self._report(self._at(span.start), "span", *there)

    def _trained(self, known: Known) -> bool:
        mask = self._trace.loss_mask[self._stretch]
        trained = [position for position, bit in enumerate(mask) if bit]
        for position in trained:
            known.count(position)
        if trained and not known.proven:
            at = f"call {known.call.call_id}"
            self._report(
                at, "prompt_unproven", _sent(known.call), "parts that do not make it up, and are trained on"
            )
        refused = next((position for position in trained if not known.allowed[position]), None)
        if refused is not None:
            reason = f"context only: call {known.call.call_id} or its logprob is not fit to train on"
            self._report(self._at(self._span.start + refused), "not_trainable", reason, "trained on")
        else:
            self._logprobs(mask, known.call.logprobs)
        return bool(trained)

    def _logprobs(self, mask: LossMask, captured: Logprobs) -> None:
        """Compared as bytes: a logprob that was rounded on the way is another one."""
        found = self._trace.logprobs[self._stretch]
        expected = logprobs(captured[position] if bit else 0.0 for position, bit in enumerate(mask))
        if found.tobytes() != expected.tobytes():
            pairs = zip(expected, found, strict=True)
            first = next((i for i, (one, other) in enumerate(pairs) if repr(one) != repr(other)), 0)
            at = self._at(self._span.start + first)
            self._report(at, "logprob", f"{expected[first]!r} as captured", repr(found[first]))

    def _at(self, position: int) -> str:
        return f"{self._where}, position {position}"


def _sent(call: Call) -> str:
    return f"the {call.prompt_tokens} tokens with digest {call.prompt_digest.hex()[:12]} that were sent"


def _within(part: PolicySpan, tokens: int) -> PolicySpan:
    return PolicySpan(part.version, part.start, min(part.length, tokens - part.start))


def _first_of(values: Sequence[float]) -> int | None:
    """The first that is not 0."""
    return next((index for index, value in enumerate(values) if value), None)


def _first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
