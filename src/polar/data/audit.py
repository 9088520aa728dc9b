"""Sessions of a run proven again from what is on disk: the journal's calls against the traces file.

Nothing is believed that can be checked: the certificate is made again and compared with the one on the result.
What is wrong is a finding, also where a file cannot be read at all. Scoring by an engine is in `rescoring.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from polar.builders.certificate import examine
from polar.store.journal import Journal, JournalError
from polar.store.paths import RunPaths
from polar.store.trajectories import TrajectoryUnreadable, read_trajectory
from polar.types import Call, Certificate, Finding, SessionResult, Trajectory, Violation

COMPARED = (
    *("builder", "builder_version", "calls", "traces", "sampled_tokens", "trainable_tokens", "dropped_tokens"),
    *("inexact_traces", "calls_digest", "traces_digest"),
)
"""Fields of a certificate that are the same whenever it is made."""


@dataclass(frozen=True)
class SessionAudit:
    session_id: str
    note: str = ""
    """Why there is nothing to audit, where that is so."""
    certificate: Certificate | None = None
    """As it comes out now."""
    findings: tuple[Finding, ...] = ()
    calls: Sequence[Call] = ()
    trajectory: Trajectory | None = None


async def audit_session(journal: Journal, run: RunPaths, session_id: str) -> SessionAudit:
    try:
        calls, result = await journal.calls(session_id), await journal.result(session_id)
        _check_arrays(calls)
    except (JournalError, msgspec.MsgspecError, ValueError, KeyError) as error:
        finding = _finding("journal", "journal_unreadable", "calls and result of the session", str(error))
        return SessionAudit(session_id, findings=(finding,))
    return await asyncio.to_thread(_audit, run, session_id, calls, result)


def _check_arrays(calls: Sequence[Call]) -> None:
    """The binary form says of each array what it holds; a field takes any of them."""
    for call in calls:
        held = [values.typecode for values in (call.new_prompt_ids, call.completion_ids, call.logprobs)]
        if held != ["i", "i", "f"]:
            raise ValueError(f"call {call.call_id} has arrays of {', '.join(held)} where ids and logprobs belong")


def _audit(run: RunPaths, session_id: str, calls: list[Call], result: SessionResult | None) -> SessionAudit:
    path = run.session(session_id).traces
    if not path.exists():
        return _without_traces(session_id, calls, result)
    try:
        trajectory = read_trajectory(path)
    except TrajectoryUnreadable as error:
        finding = _finding("traces file", "traces_unreadable", "traces that can be what they say", str(error))
        return SessionAudit(session_id, findings=(finding,), calls=calls)
    certificate, findings = examine(calls, trajectory)
    stored = result.certificate if result else None
    if trajectory.session_id != session_id:
        findings += (_finding("traces file", "session", session_id, trajectory.session_id),)
    if stored is not None:
        findings += _differences(stored, certificate)
    return SessionAudit(session_id, "", certificate, findings, calls, trajectory)


def _without_traces(session_id: str, calls: list[Call], result: SessionResult | None) -> SessionAudit:
    """A session may have left none for a reason that its result names; it may not have lost them."""
    if result is None:
        return SessionAudit(session_id, "not done yet", calls=calls)
    excused = not calls or result.failure is not None
    if excused and result.traces is None:
        why = f"failed in {result.failure.where}" if result.failure else "no calls"
        return SessionAudit(session_id, f"no traces: {why}", calls=calls)
    finding = _finding(
        "traces file", "traces_missing", result.traces or f"traces of {len(calls)} calls", "no file"
    )
    return SessionAudit(session_id, findings=(finding,), calls=calls)


def _differences(stored: Certificate, made: Certificate) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            where=f"{name} of the certificate",
            what="certificate_differs",
            expected=f"{getattr(stored, name)} as the result has it",
            found=str(getattr(made, name)),
        )
        for name in COMPARED
        if getattr(stored, name) != getattr(made, name)
    )


def _finding(where: str, what: Violation, expected: str, found: str) -> Finding:
    return Finding(where=where, what=what, expected=expected, found=found)
