"""Sessions of a run proven again from what is on disk: the journal's calls against the traces file.

Nothing is believed that can be checked: the certificate is made again and compared with the one on the result.
What is wrong is a finding, also where a file cannot be read at all. Results, tasks and labels are checked in
`audit_records.py`, scoring by an engine is in `rescoring.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from polar.audit.certificate import examine
from polar.audit.records import finding, is_older, result_findings, trace_findings
from polar.store.journal import Journal, JournalError
from polar.store.paths import RunPaths
from polar.store.trajectories import TrajectoryUnreadable, read_trajectory
from polar.types import Call, Certificate, Finding, Lease, SessionResult, Trajectory

COMPARED = (
    *("builder", "builder_version", "calls", "traces", "sampled_tokens", "trainable_tokens", "dropped_tokens"),
    *("inexact_traces", "calls_digest", "traces_digest", "records_digest"),
)
"""Fields of a certificate that are the same whenever it is made."""
OLDER = "made by an older Polar: nothing is known of changed results, labels, kinds and messages"


@dataclass(frozen=True)
class SessionAudit:
    session_id: str
    note: str = ""
    """Why there is nothing to audit, or less than usual, where that is so."""
    certificate: Certificate | None = None
    """As it comes out now."""
    findings: tuple[Finding, ...] = ()
    calls: Sequence[Call] = ()
    trajectory: Trajectory | None = None


async def audit_session(journal: Journal, run: RunPaths, session_id: str) -> SessionAudit:
    try:
        lease, calls, result = await _stored(journal, session_id)
        _check_arrays(calls)
    except (JournalError, msgspec.MsgspecError, ValueError, KeyError) as error:
        unreadable = finding("journal", "journal_unreadable", "calls and result of the session", error)
        return SessionAudit(session_id, findings=(unreadable,))
    return await asyncio.to_thread(_audit, run, lease, calls, result)


async def _stored(journal: Journal, session_id: str) -> tuple[Lease, list[Call], SessionResult | None]:
    return await journal.lease(session_id), await journal.calls(session_id), await journal.result(session_id)


def _check_arrays(calls: Sequence[Call]) -> None:
    """The binary form says of each array what it holds; a field takes any of them."""
    for call in calls:
        held = [values.typecode for values in (call.new_prompt_ids, call.completion_ids, call.logprobs)]
        if held != ["i", "i", "f"]:
            raise ValueError(f"call {call.call_id} has arrays of {', '.join(held)} where ids and logprobs belong")


def _audit(run: RunPaths, lease: Lease, calls: list[Call], result: SessionResult | None) -> SessionAudit:
    session_id = lease.session.session_id
    found = tuple(result_findings(lease, result)) if result else _without_result(lease)
    path = run.session(session_id).traces
    if not path.exists():
        return _without_traces(session_id, calls, result, found)
    try:
        trajectory = read_trajectory(path)
    except TrajectoryUnreadable as error:
        damage = finding("traces file", "traces_unreadable", "traces that can be what they say", error)
        return SessionAudit(session_id, findings=(*found, damage), calls=calls)
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


def _without_result(lease: Lease) -> tuple[Finding, ...]:
    """A session that has ended has its result; one that has not may have none yet."""
    stage = lease.session.stage
    return (
        finding("journal", "result_missing", f"the result of a session that is {stage}", "none"),
    ) * stage.final


def _without_traces(
    session_id: str, calls: list[Call], result: SessionResult | None, found: tuple[Finding, ...]
) -> SessionAudit:
    """A session may have left none for a reason that its result names; it may not have lost them."""
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
    """What an older certificate has not is not compared."""
    compared = COMPARED if stored.records_digest else COMPARED[:-1]
    return tuple(
        finding(
            f"{name} of the certificate",
            "certificate_differs",
            f"{getattr(stored, name)} as the result has it",
            getattr(made, name),
        )
        for name in compared
        if getattr(stored, name) != getattr(made, name)
    )
