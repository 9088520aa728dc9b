"""Audits stored sessions of a run: the journal's calls against the traces file.

Everything that can be checked is: the certificate is computed again and compared with the one in the result. What
is wrong is a finding, also if a file cannot be read at all. `records.py` checks results, tasks and labels,
`rescoring.py` has tokens scored by an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from polar.audit.certificate import examine, finding
from polar.audit.records import is_older, result_findings, trace_findings
from polar.store.journal import Journal, JournalError
from polar.store.paths import RunPaths
from polar.store.trajectories import TrajectoryUnreadable, read_trajectory
from polar.types import Call, Certificate, Finding, Lease, SessionResult, Trajectory

COMPARED = (
    *("builder", "builder_version", "calls", "traces", "sampled_tokens", "trainable_tokens", "dropped_tokens"),
    *("inexact_traces", "calls_digest", "traces_digest", "records_digest"),
)
"""Fields of a certificate that must come out the same again."""
OLDER = "made by an older Polar: changes of results, labels, kinds and messages cannot be detected"


@dataclass(frozen=True)
class SessionAudit:
    session_id: str
    note: str = ""
    """Why there is nothing to audit, or less than usual."""
    certificate: Certificate | None = None
    """As computed now."""
    findings: tuple[Finding, ...] = ()
    calls: Sequence[Call] = ()
    trajectory: Trajectory | None = None


async def audit_session(journal: Journal, run: RunPaths, session_id: str) -> SessionAudit:
    try:
        lease, calls = await journal.lease(session_id), await journal.calls(session_id)
        result = await journal.result(session_id)
        check_arrays(calls)
    except (JournalError, msgspec.MsgspecError, ValueError, KeyError) as error:
        unreadable = finding("journal", "journal_unreadable", "calls and result of the session", error)
        return SessionAudit(session_id, findings=(unreadable,))
    return await asyncio.to_thread(_audit, run, lease, calls, result)


def check_arrays(calls: Sequence[Call]) -> None:
    """Raises ValueError. The stored form names the type of each array, and decoding accepts any."""
    for call in calls:
        types = [values.typecode for values in (call.new_prompt_ids, call.completion_ids, call.logprobs)]
        if types != ["i", "i", "f"]:
            raise ValueError(f"call {call.call_id} has arrays of {', '.join(types)} in place of ids and logprobs")


def _audit(run: RunPaths, lease: Lease, calls: list[Call], result: SessionResult | None) -> SessionAudit:
    path = run.session(lease.session.session_id).traces
    try:
        trajectory = read_trajectory(path) if path.exists() else None
    except TrajectoryUnreadable as error:
        damage = finding("traces file", "traces_unreadable", "readable traces", error)
        found = (*_row_findings(lease, result), damage)
        return SessionAudit(lease.session.session_id, findings=found, calls=calls)
    return audit_values(lease, calls, result, trajectory)


def audit_values(
    lease: Lease, calls: Sequence[Call], result: SessionResult | None, trajectory: Trajectory | None
) -> SessionAudit:
    """What is stored of one session, wherever it was read. Slow with a long session: call it in a thread."""
    session_id = lease.session.session_id
    found = _row_findings(lease, result)
    if trajectory is None:
        return _without_traces(session_id, calls, result, found)
    certificate, against_calls = examine(calls, trajectory)
    found += against_calls
    if trajectory.session_id != session_id:
        found += (finding("traces file", "session", session_id, trajectory.session_id),)
    if result is not None:
        found += tuple(trace_findings(lease, result, trajectory))
        if result.certificate is not None:
            found += _differences(result.certificate, certificate)
    note = OLDER if result is not None and is_older(result) else ""
    return SessionAudit(session_id, note, certificate, found, calls, trajectory)


def _row_findings(lease: Lease, result: SessionResult | None) -> tuple[Finding, ...]:
    return tuple(result_findings(lease, result)) if result else _without_result(lease)


def _without_result(lease: Lease) -> tuple[Finding, ...]:
    """Only a session that has not ended may have no result."""
    stage = lease.session.stage
    return (
        finding("journal", "result_missing", f"the result of a session that is {stage}", "none"),
    ) * stage.final


def _without_traces(
    session_id: str, calls: Sequence[Call], result: SessionResult | None, found: tuple[Finding, ...]
) -> SessionAudit:
    """No traces are right if the result says why, and wrong if they were lost."""
    if result is None:
        return SessionAudit(session_id, "" if found else "not done yet", findings=found, calls=calls)
    excused = not calls or result.failure is not None
    if excused and result.traces is None:
        why = f"failed in {result.failure.where}" if result.failure else "no calls"
        return SessionAudit(session_id, f"no traces: {why}", findings=found, calls=calls)
    expected = result.traces or f"traces of {len(calls)} calls"
    lost = finding("traces file", "traces_missing", expected, "no file")
    return SessionAudit(session_id, findings=(*found, lost), calls=calls)


def _differences(stored: Certificate, made: Certificate) -> tuple[Finding, ...]:
    """A field that an older certificate lacks is not compared."""
    compared = COMPARED if stored.records_digest else COMPARED[:-1]
    return tuple(
        finding(
            f"{name} of the certificate",
            "certificate_differs",
            f"{getattr(stored, name)} as in the result",
            getattr(made, name),
        )
        for name in compared
        if getattr(stored, name) != getattr(made, name)
    )
