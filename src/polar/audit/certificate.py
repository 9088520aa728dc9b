"""Checks a trajectory against the calls it was built from, independently of the builder.

POSTRUN, after the builder, and again by `polar audit`. Each token is hashed once: a digest runs along each trace,
and where a call's tokens begin it is compared with the digest of the prompt that was sent. Wrong data is a
finding, never an exception.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, get_args

from polar.audit.spans import AuditedCall, SpanCheck
from polar.builders.drops import DropRules, judge
from polar.tokens.sequences import TokenDigest
from polar.types import Call, CallKind, Certificate, Finding, TokenIds, Trace, Trajectory, Violation
from polar.types.codec import encode

EVERY_KIND = DropRules(trainable_kinds=get_args(CallKind))
"""Which kinds are trained on is the builder's choice; all other rules are checked."""


def finding(where: str, what: Violation, expected: object, found: object) -> Finding:
    return Finding(where=where, what=what, expected=str(expected), found=str(found))


@dataclass
class Findings:
    entries: list[Finding] = field(default_factory=list[Finding])

    def add(self, where: str, what: Violation, expected: object, found: object) -> None:
        self.entries.append(finding(where, what, expected, found))


def certify(calls: Sequence[Call], trajectory: Trajectory) -> Certificate:
    return examine(calls, trajectory)[0]


def examine(calls: Sequence[Call], trajectory: Trajectory) -> tuple[Certificate, tuple[Finding, ...]]:
    """The certificate and its findings."""
    findings = Findings()
    known = _audit_calls(calls, trajectory.session_id, findings)
    for index, trace in enumerate(trajectory.traces):
        _check_trace(index, trace, trajectory, known, findings)
    _check_drops(trajectory, known, findings)
    for entry in known.values():
        _check_coverage(entry, findings)
    return _certificate(calls, trajectory, findings.entries), tuple(findings.entries)


def _certificate(calls: Sequence[Call], trajectory: Trajectory, findings: Sequence[Finding]) -> Certificate:
    inexact = sum(not trace.context_exact for trace in trajectory.traces)
    return Certificate(
        builder=trajectory.builder,
        builder_version=trajectory.builder_version,
        calls=len(calls),
        traces=len(trajectory.traces),
        sampled_tokens=sum(len(call.completion_ids) for call in calls),
        trainable_tokens=sum(trace.trainable_tokens for trace in trajectory.traces),
        dropped_tokens=sum(drop.length for drop in trajectory.dropped),
        inexact_traces=inexact,
        calls_digest=_chained(_call_parts(call) for call in calls),
        traces_digest=_chained([*map(_trace_parts, trajectory.traces), _drop_parts(trajectory)]),
        records_digest=_chained([*map(_record_parts, calls), _account_parts(trajectory)]),
        findings=len(findings),
        reasons=dict(Counter(finding.what for finding in findings)),
        exact=not findings and not inexact,
    )


def _audit_calls(calls: Sequence[Call], session_id: str, findings: Findings) -> dict[str, AuditedCall]:
    known: dict[str, AuditedCall] = {}
    for call in calls:
        where = f"call {call.call_id}"
        if call.call_id in known:
            findings.add(where, "calls_unsound", "one call of this id", "a second")
            continue
        if call.session_id != session_id:
            findings.add(where, "session", session_id, call.session_id)
        parent = known.get(call.parent_id) if call.parent_id is not None else None
        if parent is None and (call.parent_id is not None or call.continues):
            findings.add(where, "calls_unsound", f"its parent {call.parent_id} before it", "no such call")
        known[call.call_id] = _audit_call(call, parent if call.continues else None)
    return known


def _audit_call(call: Call, continued: AuditedCall | None) -> AuditedCall:
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


def _check_trace(
    index: int, trace: Trace, trajectory: Trajectory, known: dict[str, AuditedCall], findings: Findings
) -> None:
    where = f"trace {index}"
    if trace.session_id != trajectory.session_id:
        findings.add(where, "session", trajectory.session_id, trace.session_id)
    kinds = _check_spans(where, trace, known, findings)
    if kinds and trace.kind not in kinds:
        findings.add(where, "kind", " or ".join(sorted(kinds)), trace.kind)
    if trace.reward is not None and not any(trace.loss_mask):
        findings.add(where, "reward", "none, because there is nothing to train on", trace.reward)
    _check_branch(where, index, trajectory, findings)


def _check_spans(where: str, trace: Trace, known: dict[str, AuditedCall], findings: Findings) -> set[str]:
    """Returns the kinds of the calls that the trace trains on."""
    running, end = TokenDigest(trace.prompt_ids), 0
    exact, kinds = trace.context_exact, set[str]()
    for span in trace.spans:
        stop = span.start + span.length
        if not end <= span.start <= stop <= len(trace.response_ids):
            bounds = f"between {end} and {len(trace.response_ids)}, after the previous span"
            findings.add(f"{where}, call {span.call_id}", "span", bounds, f"{span.start} to {stop}")
            continue
        check = SpanCheck(where, trace, span, findings.add)
        check.gap(end)
        running = running.extended(trace.response_ids[end : span.start])
        entry = known.get(span.call_id)
        if entry is None:
            findings.add(f"{where}, position {span.start}", "span", "a call of the session", span.call_id)
        else:
            if exact and not _is_context(running, trace, span.start, entry.call):
                exact = False  # later spans of this trace differ for the same reason
                check.context(entry)
            if check.sampled(entry):
                kinds.add(entry.call.kind)
        running, end = running.extended(trace.response_ids[span.start : stop]), stop
    _check_end(where, trace, end, findings)
    return kinds


def _is_context(running: TokenDigest, trace: Trace, start: int, call: Call) -> bool:
    return len(trace.prompt_ids) + start == call.prompt_tokens and running.value() == call.prompt_digest


def _check_end(where: str, trace: Trace, end: int, findings: Findings) -> None:
    rest = len(trace.response_ids) - end
    if any(trace.loss_mask[end:]):
        findings.add(f"{where}, position {end}", "mask", "0 outside spans", "1")
    elif rest:
        findings.add(
            f"{where}, position {end}", "context", "the end, because nothing was sampled after", f"{rest} ids"
        )


def _check_branch(where: str, index: int, trajectory: Trajectory, findings: Findings) -> None:
    """Whether a trace that claims to begin like an earlier one does."""
    branch: Any = trajectory.traces[index].metadata.get("branch")
    if branch is None:
        return
    if not is_branch(branch, index, trajectory.traces):
        findings.add(where, "branch", "the tokens of an earlier trace at its beginning", branch)


def is_branch(branch: Any, index: int, traces: Sequence[Trace]) -> bool:
    """Whether the first `tokens` of the trace at `index` are those of the earlier `trace`."""
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


def _check_drops(trajectory: Trajectory, known: dict[str, AuditedCall], findings: Findings) -> None:
    for drop in trajectory.dropped:
        where = f"dropped of call {drop.call_id}, position {drop.start}"
        entry = known.get(drop.call_id)
        if entry is None:
            findings.add(where, "coverage", "a call of the session", drop.call_id)
            continue
        size = len(entry.came_out)
        if not 0 <= drop.start <= drop.start + drop.length <= size:
            findings.add(where, "coverage", f"positions below {size}", f"{drop.length} from {drop.start}")
            continue
        if not drop.reason:
            findings.add(where, "coverage", "a reason", "none")
        for position in range(drop.start, drop.start + drop.length):
            entry.count(position)


def _check_coverage(entry: AuditedCall, findings: Findings) -> None:
    start = 0
    for times, run in groupby(entry.came_out):
        stop = start + sum(1 for _ in run)
        if times != 1:
            where = f"call {entry.call.call_id}, positions {start} to {stop - 1}"
            findings.add(where, "coverage", "each sampled token once, trained on or dropped", f"{times} times")
        start = stop


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


def _record_parts(call: Call) -> Iterable[bytes]:
    """The whole call as it is stored, with all its fields."""
    yield encode(call)


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
