"""Compares the stored records of a session: its row, its result, its task and the labels of its traces.

Each is written at another time and place, so a change of one alone shows. Runs of older versions have no seals,
labels or digests of whole records; there the checks that need them are left out, and the audit notes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polar.audit.certificate import finding
from polar.builders.labels import WrongRewards, labelled
from polar.store.journal import Journal
from polar.store.paths import RunPaths, RunRecord
from polar.store.seal import seal_of
from polar.types import Finding, Lease, SessionResult, Trajectory, TrajectoryStatistics, is_id

LABELS = ("task_id", "group_id", "sample", "attempt", "failure")


def is_older(result: SessionResult) -> bool:
    """Made before results were sealed. Both are required, so removing one of them does not pass as older."""
    return not result.seal and (result.certificate is None or not result.certificate.records_digest)


def result_findings(lease: Lease, result: SessionResult) -> Iterator[Finding]:
    """The result against the session's row and its seal."""
    session = lease.session
    for name in ("session_id", "task_id", "index", "attempt", "stage"):
        expected, found = getattr(session, name), getattr(result, name)
        if expected != found:
            yield finding(f"{name} of the result", "result_differs", f"{expected} as in the session's row", found)
    if is_older(result):
        return
    made = seal_of(result, lease.task)
    if made != result.seal:
        expected = f"result and task with the seal {result.seal}" if result.seal else "a sealed result"
        yield finding("result", "result_differs", expected, made if result.seal else "none")
    if result.traces is not None and result.certificate is None:
        yield finding("result", "certificate_missing", "the certificate of its traces", "none")


def trace_findings(lease: Lease, result: SessionResult, trajectory: Trajectory) -> Iterator[Finding]:
    """The traces against the result: statistics, labels and rewards."""
    yield from _statistics_findings(result.statistics, trajectory.statistics)
    older = is_older(result)
    try:
        # An older Polar left a reward on the traces of a session that failed through infrastructure.
        expected = labelled(trajectory, lease, result.score, None if older else result.failure)
    except WrongRewards as error:
        yield finding("score", "reward", "one reward for each trace", error)
        return
    for index, (trace, right) in enumerate(zip(trajectory.traces, expected.traces, strict=True)):
        if trace.reward != right.reward:
            yield finding(f"trace {index}", "reward", f"{right.reward} by the result's score", trace.reward)
        for name in () if older else LABELS:
            if getattr(trace, name) != getattr(right, name):
                yield finding(f"trace {index}, {name}", "labels", getattr(right, name), getattr(trace, name))


def _statistics_findings(expected: TrajectoryStatistics, values: dict[str, Any]) -> Iterator[Finding]:
    try:
        found = TrajectoryStatistics.model_validate(values)
    except ValueError as error:
        yield finding("traces file", "statistics", "readable counts", error)
        return
    for name in TrajectoryStatistics.model_fields:
        if getattr(found, name) != getattr(expected, name):
            in_result = f"{getattr(expected, name)} as in the result"
            yield finding(f"{name} of the traces file", "statistics", in_result, getattr(found, name))


async def run_findings(journal: Journal, run: RunPaths, record: RunRecord) -> list[Finding]:
    """Sessions with remains on disk that the journal does not list."""
    known = await journal.session_ids()
    found = [
        finding(f"session {session_id}", "session_missing", "its row in the journal", f"only {left}")
        for left, session_ids in (
            ("calls, stages or a result", await journal.strays()),
            ("a folder", _folders(run)),
        )
        for session_id in session_ids
        if session_id not in known
    ]
    if record.sessions is not None and record.sessions != len(known):
        found.append(finding("journal", "session_missing", f"{record.sessions} sessions by run.json", len(known)))
    return found


def _folders(run: RunPaths) -> list[str]:
    if not run.sessions.is_dir():
        return []
    return sorted(path.name for path in run.sessions.iterdir() if path.is_dir() and is_id(path.name))
