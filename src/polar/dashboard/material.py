"""What the page of a session is made of, read from a run on disk or from what a node uploaded to a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from polar import registry
from polar.audit.certificate import examine
from polar.audit.run import SessionAudit, audit_session, audit_values, check_arrays
from polar.builders.labels import WrongRewards, labelled
from polar.errors import PolarError, boundary
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.store.session_files import read_files
from polar.types import Call, Lease, SessionFile, SessionResult, SessionUpload, Spec, Stage, Trajectory

BUILDERS = sorted(registry.BUILT_IN["builder"])
"""That an address may name. Another builder would be a module to import."""
ROOM_BYTES = 256 * 2**10
"""How much of a stored session's logs, patch and artefacts a page holds; a node uploads as much by default."""


@dataclass(frozen=True)
class PageMaterial:
    """All that is known of one session, whether it has ended or not."""

    lease: Lease
    """The session with the stage it is in, and its task."""
    result: SessionResult | None
    """None: the session has not ended."""
    stages: Sequence[tuple[Stage, float]]
    """Each with the time at which it began, in Unix seconds."""
    audit: SessionAudit
    """With the calls and the trajectory that it proves."""
    files: tuple[SessionFile, ...] = ()
    """Logs and kept files, as far as they were read or uploaded."""
    run_id: str = ""
    """Empty: the session is a server's."""
    built_now: bool = False
    """The traces are not the stored ones: `replayed` built them."""

    @property
    def failure(self) -> str:
        failure = self.result.failure if self.result else None
        return f"{failure.where}: {failure.type}" if failure else ""

    @property
    def session_id(self) -> str:
        return self.lease.session.session_id

    @property
    def calls(self) -> Sequence[Call]:
        return self.audit.calls

    @property
    def trajectory(self) -> Trajectory | None:
        return self.audit.trajectory


async def material_of_run(run: RunPaths, session_id: str) -> PageMaterial:
    """Raises `PolarError` for a session of which not even the task can be read."""
    async with await Journal.open(run.journal, read_only=True) as journal:
        audit = await audit_session(journal, run, session_id)
        try:
            lease, result = await journal.lease(session_id), await journal.result(session_id)
            stages = await journal.stages(session_id)
        except (msgspec.MsgspecError, ValueError, KeyError) as error:
            why = f"the journal's row of session {session_id} cannot be read; `polar audit` names the damage"
            raise PolarError(why) from error
    files = await asyncio.to_thread(read_files, run.session(session_id), ROOM_BYTES)
    return PageMaterial(lease, result, stages, audit, files, run.run_id)


def material_of_upload(
    lease: Lease,
    upload: SessionUpload | None,
    stages: Sequence[tuple[Stage, float]],
    result: SessionResult | None = None,
) -> PageMaterial:
    """Of a session at a server. `upload` has its calls so far and no result while it runs; None: nothing was
    uploaded, as of a session that waits or that the server ended itself, whose `result` the server has.

    Slow with a long session: call it in a thread. Raises `PolarError` for an upload that cannot be read."""
    if upload is None:
        return PageMaterial(lease, result, stages, audit_values(lease, (), result, None))
    try:
        check_arrays(upload.calls)
        if result is None and upload.result:
            result = SessionResult.model_validate_json(upload.result)
    except ValueError as error:
        raise PolarError(f"the upload of session {lease.session.session_id} cannot be read: {error}") from error
    audit = audit_values(lease, upload.calls, result, upload.trajectory)
    return PageMaterial(lease, result, stages, audit, upload.files)


def rebuilt(material: PageMaterial, builder: str) -> PageMaterial:
    """With the traces of the named builder; the task's own has the task's options. Empty: the stored traces, or
    if there are none, those that the task's builder makes of the calls so far, if it is a built-in: whoever wrote
    the task may be another than who looks, and names no module to import here."""
    own = material.lease.task.builder
    if builder:
        return replayed(material, own if builder == own.name else Spec(name=builder))
    is_running = material.trajectory is None and bool(material.calls)
    return replayed(material, own) if is_running and own.name in BUILDERS else material


def replayed(material: PageMaterial, builder: Spec) -> PageMaterial:
    """The same calls with the traces that this builder makes of them now. Slow with a long session: call it in a
    thread. Raises `PolarError` for a builder that is unknown or fails."""
    made = registry.make("builder", builder)
    with boundary("builder"):
        trajectory: Trajectory = made.build(material.session_id, material.calls)
    certificate, findings = examine(material.calls, trajectory)
    note = f"the traces were built now by {builder.name}"
    audit = SessionAudit(
        material.session_id, note, certificate, findings, material.calls, _rewarded(material, trajectory)
    )
    return replace(material, audit=audit, built_now=True)


def _rewarded(material: PageMaterial, trajectory: Trajectory) -> Trajectory:
    """With the rewards of the session's score. A reward for each trace fits the stored traces only."""
    result = material.result
    try:
        return labelled(trajectory, material.lease, result and result.score, result and result.failure)
    except WrongRewards:
        return trajectory
