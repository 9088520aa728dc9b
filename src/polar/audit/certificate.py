"""Checks a trajectory against the calls it was built from, independently of the builder.

POSTRUN, after the builder, and again by `polar audit`. Each token is hashed once: a digest runs along each trace,
and where a call's tokens begin it is compared with the digest of the prompt that was sent. Wrong data is a
finding, never an exception.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from polar.audit.spans import AuditedCall, SpanCheck, audited_call
from polar.tokens.sequences import TokenDigest
from polar.types import Call, Certificate, Dropped, Finding, TokenIds, Trace, Trajectory, Violation
from polar.types.codec import encode


def finding(where: str, what: Violation, expected: object, found: object) -> Finding:
    return Finding(where=where, what=what, expected=str(expected), found=str(found))


def certify(calls: Sequence[Call], trajectory: Trajectory) -> Certificate:
    return examine(calls, trajectory)[0]


def examine(calls: Sequence[Call], trajectory: Trajectory) -> tuple[Certificate, tuple[Finding, ...]]:
    """The certificate and its findings."""
    findings = _Examination(calls, trajectory).findings
    inexact = sum(not trace.context_exact for trace in trajectory.traces)
    certificate = Certificate(
        builder=trajectory.builder,
        builder_version=trajectory.builder_version,
        calls=len(calls),
        traces=len(trajectory.traces),
        sampled_tokens=sum(len(call.completion_ids) for call in calls),
        trainable_tokens=sum(trace.trainable_tokens for trace in trajectory.traces),
        dropped_tokens=sum(drop.length for drop in trajectory.dropped),
        inexact_traces=inexact,
        calls_digest=_chained(map(_call_parts, calls)),
        traces_digest=_chained([*map(_trace_parts, trajectory.traces), _drop_parts(trajectory)]),
        records_digest=_chained([*([encode(call)] for call in calls), _account_parts(trajectory)]),
        findings=len(findings),
        reasons=dict(Counter(each.what for each in findings)),
        exact=not findings and not inexact,
    )
    return certificate, tuple(findings)


class _Examination:
    """Of one trajectory."""

    def __init__(self, calls: Sequence[Call], trajectory: Trajectory) -> None:
        self.findings: list[Finding] = []
        self._trajectory = trajectory
        self._calls: dict[str, AuditedCall] = {}
        for call in calls:
            self._add_call(call)
        for index, trace in enumerate(trajectory.traces):
            self._check_trace(index, trace)
        for drop in trajectory.dropped:
            self._check_drop(drop)
        for audited in self._calls.values():
            self._check_coverage(audited)

    def _report(self, where: str, what: Violation, expected: object, found: object) -> None:
        self.findings.append(finding(where, what, expected, found))

    def _add_call(self, call: Call) -> None:
        where, session_id = f"call {call.call_id}", self._trajectory.session_id
        if call.call_id in self._calls:
            self._report(where, "calls_unsound", "one call of this id", "a second")
            return
        if call.session_id != session_id:
            self._report(where, "session", session_id, call.session_id)
        parent = self._calls.get(call.parent_id) if call.parent_id is not None else None
        if parent is None and (call.parent_id is not None or call.continues):
            self._report(where, "calls_unsound", f"its parent {call.parent_id} before it", "no such call")
        self._calls[call.call_id] = audited_call(call, parent if call.continues else None)

    def _check_trace(self, index: int, trace: Trace) -> None:
        where, session_id = f"trace {index}", self._trajectory.session_id
        if trace.session_id != session_id:
            self._report(where, "session", session_id, trace.session_id)
        kinds = self._check_spans(where, trace)
        if kinds and trace.kind not in kinds:
            self._report(where, "kind", " or ".join(sorted(kinds)), trace.kind)
        if trace.reward is not None and not any(trace.loss_mask):
            self._report(where, "reward", "none, because there is nothing to train on", trace.reward)
        branch: Any = trace.metadata.get("branch")
        if branch is not None and not _is_branch(branch, index, self._trajectory.traces):
            self._report(where, "branch", "the tokens of an earlier trace at its beginning", branch)

    def _check_spans(self, where: str, trace: Trace) -> set[str]:
        """Returns the kinds of the calls that the trace trains on."""
        running, end = TokenDigest(trace.prompt_ids), 0
        exact, kinds = trace.context_exact, set[str]()
        for span in trace.spans:
            stop = span.start + span.length
            if not end <= span.start <= stop <= len(trace.response_ids):
                bounds = f"between {end} and {len(trace.response_ids)}, after the previous span"
                self._report(f"{where}, call {span.call_id}", "span", bounds, f"{span.start} to {stop}")
                continue
            check = SpanCheck(where, trace, span, self._report)
            check.gap(end)
            running = running.extended(trace.response_ids[end : span.start])
            audited = self._calls.get(span.call_id)
            if audited is None:
                self._report(f"{where}, position {span.start}", "span", "a call of the session", span.call_id)
            else:
                if exact and not _is_context(running, trace, span.start, audited.call):
                    exact = False  # later spans of this trace differ for the same reason
                    check.context(audited)
                if check.sampled(audited):
                    kinds.add(audited.call.kind)
            running, end = running.extended(trace.response_ids[span.start : stop]), stop
        self._check_end(f"{where}, position {end}", trace, end)
        return kinds

    def _check_end(self, where: str, trace: Trace, end: int) -> None:
        rest = len(trace.response_ids) - end
        if any(trace.loss_mask[end:]):
            self._report(where, "mask", "0 outside spans", "1")
        elif rest:
            self._report(where, "context", "the end, because nothing was sampled after", f"{rest} ids")

    def _check_drop(self, drop: Dropped) -> None:
        where = f"dropped of call {drop.call_id}, position {drop.start}"
        audited = self._calls.get(drop.call_id)
        if audited is None:
            self._report(where, "coverage", "a call of the session", drop.call_id)
            return
        size = len(audited.came_out)
        if not 0 <= drop.start <= drop.start + drop.length <= size:
            self._report(where, "coverage", f"positions below {size}", f"{drop.length} from {drop.start}")
            return
        if not drop.reason:
            self._report(where, "coverage", "a reason", "none")
        for position in range(drop.start, drop.start + drop.length):
            audited.count(position)

    def _check_coverage(self, audited: AuditedCall) -> None:
        start = 0
        for times, run in groupby(audited.came_out):
            stop = start + sum(1 for _ in run)
            if times != 1:
                where = f"call {audited.call.call_id}, positions {start} to {stop - 1}"
                expected = "each sampled token once, trained on or dropped"
                self._report(where, "coverage", expected, f"{times} times")
            start = stop


def _is_context(running: TokenDigest, trace: Trace, start: int, call: Call) -> bool:
    return len(trace.prompt_ids) + start == call.prompt_tokens and running.value() == call.prompt_digest


def _is_branch(branch: Any, index: int, traces: Sequence[Trace]) -> bool:
    """Whether the trace at `index` begins with the first `tokens` of the earlier `trace`."""
    try:
        earlier, tokens = int(branch["trace"]), int(branch["tokens"])
    except (TypeError, KeyError, ValueError):
        return False
    if not 0 <= earlier < index or tokens < 0:
        return False
    one, other = (_beginning(traces[each], tokens) for each in (earlier, index))
    return len(one) == tokens and one == other


def _beginning(trace: Trace, tokens: int) -> TokenIds:
    prompt = trace.prompt_ids[:tokens]
    return prompt + trace.response_ids[: tokens - len(prompt)]


def _chained(parts_of_each: Iterable[Iterable[bytes]]) -> str:
    """Each link hashes the previous one and its own parts, with their lengths."""
    link = b""
    for parts in parts_of_each:
        running = hashlib.blake2b(link, digest_size=16)
        for part in parts:
            running.update(len(part).to_bytes(8, "little"))
            running.update(part)
        link = running.digest()
    return link.hex()


def _call_parts(call: Call) -> Iterable[bytes]:
    return call.call_id.encode(), call.prompt_digest, call.completion_ids.tobytes()


def _account_parts(trajectory: Trajectory) -> Iterable[bytes]:
    """A trajectory without its tokens, and without labels and rewards, which come later."""
    yield encode(trajectory.breaks)
    yield encode(trajectory.statistics)
    for trace in trajectory.traces:
        yield encode(trace.metadata)


def _trace_parts(trace: Trace) -> Iterable[bytes]:
    yield f"{trace.kind} {trace.context_exact}".encode()
    for values in (trace.prompt_ids, trace.response_ids, trace.loss_mask, trace.logprobs):
        yield values.tobytes()
    for span in trace.spans:
        yield f"{span.start} {span.length} {span.call_id} {span.policy_version}".encode()
        for part in span.policy_spans:
            yield f"{part.start} {part.length} {part.version}".encode()


def _drop_parts(trajectory: Trajectory) -> Iterable[bytes]:
    for drop in trajectory.dropped:
        yield f"{drop.start} {drop.length} {drop.call_id} {drop.reason}".encode()
