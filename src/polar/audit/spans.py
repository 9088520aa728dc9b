"""Compares one span of a trace with the call it names: ids, mask, logprobs and policy versions, token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from polar.builders.drops import DropRules, judge
from polar.tokens.sequences import TokenDigest, first_difference, joined_prompt
from polar.types import Call, CallKind, Logprobs, LossMask, PolicySpan, Span, TokenIds, Trace, Violation, logprobs

EVERY_KIND = DropRules(trainable_kinds=get_args(CallKind))
"""Which kinds are trained on is the builder's choice; all other rules are checked."""
Report = Callable[[str, Violation, object, object], None]
"""Takes where, what, expected and found."""


@dataclass(eq=False, slots=True)
class AuditedCall:
    """A call, and how often each of its sampled tokens has come out so far."""

    call: Call
    continued: AuditedCall | None
    proven: bool
    """Its stored parts make up the prompt that was sent."""
    allowed: LossMask
    """1 for tokens that may be trained on, judged by the call alone."""
    digest: TokenDigest
    """Of prompt and completion."""
    tokens: int
    came_out: bytearray

    def count(self, position: int) -> None:
        self.came_out[position] = min(255, self.came_out[position] + 1)

    def prompt_ids(self) -> TokenIds:
        """The whole prompt. Costs its length, so use it for findings only."""
        return joined_prompt(self._continued_calls())

    def _continued_calls(self) -> Iterator[Call]:
        audited: AuditedCall | None = self
        while audited is not None:
            yield audited.call
            audited = audited.continued


def audited_call(call: Call, continued: AuditedCall | None) -> AuditedCall:
    before, tokens = (continued.digest, continued.tokens) if continued else (TokenDigest(), 0)
    prompt = before.extended(call.new_prompt_ids)
    tokens += len(call.new_prompt_ids)
    return AuditedCall(
        call=call,
        continued=continued,
        proven=prompt.value() == call.prompt_digest and tokens == call.prompt_tokens,
        allowed=judge(call, EVERY_KIND).mask,
        digest=prompt.extended(call.completion_ids),
        tokens=tokens + len(call.completion_ids),
        came_out=bytearray(len(call.completion_ids)),
    )


class SpanCheck:
    def __init__(self, where: str, trace: Trace, span: Span, report: Report) -> None:
        self._where = where
        self._trace = trace
        self._span = span
        self._stretch = slice(span.start, span.start + span.length)
        self._report = report

    def gap(self, end: int) -> None:
        """Between the previous span (up to `end`) and this one, tokens have neither mask nor logprob."""
        between = slice(end, self._span.start)
        first = _first_of(self._trace.loss_mask[between])
        if first is not None:
            self._report(self._at(end + first), "mask", "0 outside spans", "1")
        first = _first_of(self._trace.logprobs[between])
        if first is not None:
            self._report(self._at(end + first), "logprob", "0.0 for context", self._trace.logprobs[end + first])

    def context(self, audited: AuditedCall) -> None:
        """Reports where the tokens before the span differ from the prompt that was sent."""
        found = self._trace.prompt_ids + self._trace.response_ids[: self._span.start]
        call = audited.call
        where = f"{self._where}, before call {call.call_id}"
        if not audited.proven:
            self._report(where, "context", _sent(call), f"{len(found)} other tokens")
            return
        sent = audited.prompt_ids()
        first = first_difference(sent, found)
        expected = f"id {sent[first]}" if first < len(sent) else f"the end of the prompt after {first} ids"
        there = f"id {found[first]}" if first < len(found) else "the call's own tokens"
        self._report(f"{where}, token {first} of the sequence", "context", expected, there)

    def sampled(self, audited: AuditedCall) -> bool:
        """Checks the call's own tokens; True if some are trained on. A span may hold only the first of them; the
        others must be in the dropped list, which the count of all tokens shows."""
        call, span = audited.call, self._span
        found = self._trace.response_ids[self._stretch]
        if len(found) > len(call.completion_ids):
            expected = f"the {len(call.completion_ids)} tokens of call {call.call_id}, or the first of them"
            self._report(self._at(span.start), "span", expected, len(found))
            return False
        if len(found) < len(call.completion_ids) and self._stretch.stop == len(self._trace.response_ids):
            expected = f"all {len(call.completion_ids)} tokens of call {call.call_id}: nothing overwrote them"
            self._report(self._at(span.start), "span", expected, len(found))
        self._versions(call)
        expected_ids = call.completion_ids[: len(found)]
        if found != expected_ids:
            first = first_difference(expected_ids, found)
            at = self._at(span.start + first)
            self._report(at, "tokens", f"id {expected_ids[first]}", f"id {found[first]}")
        return self._trained(audited)

    def _versions(self, call: Call) -> None:
        """Each token has the policy version with which the call sampled it."""
        span = self._span
        if span.policy_version != call.policy_version:
            self._report(self._at(span.start), "span", repr(call.policy_version), repr(span.policy_version))
        expected = list(call.policy_spans)
        if span.length < len(call.completion_ids):
            expected = [_within(part, span.length) for part in expected if part.start < span.length]
        found = list(span.policy_spans)
        if found != expected:
            first = first_difference(expected, found)
            there = (str(each[first]) if first < len(each) else "no more versions" for each in (expected, found))
            self._report(self._at(span.start), "span", *there)

    def _trained(self, audited: AuditedCall) -> bool:
        mask = self._trace.loss_mask[self._stretch]
        trained = [position for position, bit in enumerate(mask) if bit]
        for position in trained:
            audited.count(position)
        if trained and not audited.proven:
            at = f"call {audited.call.call_id}"
            self._report(
                at, "prompt_unproven", _sent(audited.call), "parts that do not make it up, and tokens trained on"
            )
        refused = next((position for position in trained if not audited.allowed[position]), None)
        if refused is not None:
            reason = f"context only: call {audited.call.call_id} or its logprob may not be trained on"
            self._report(self._at(self._span.start + refused), "not_trainable", reason, "trained on")
        else:
            self._logprobs(mask, audited.call.logprobs)
        return bool(trained)

    def _logprobs(self, mask: LossMask, captured: Logprobs) -> None:
        """Compared as bytes: a rounded logprob is a different one."""
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
