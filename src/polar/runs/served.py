"""Tasks and sessions that a rollout server has: the same task again, and a session kept as one of a run here."""

from __future__ import annotations

import orjson

from polar.client import PolarClient, ServerError
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.store.private import make_private
from polar.store.session_files import write_files
from polar.store.trajectories import write_trajectory
from polar.types import Lease, Session, SessionResult, Stage, TaskRequest, TaskStatus

LIVE_STAGES = (Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN)


async def same_task(client: PolarClient, task: TaskRequest) -> TaskStatus | None:
    """The server's task of this id, if it has the same content. JSON is compared: a tuple comes back as a list."""
    status = await client.task(str(task.task_id))
    known = (await client.lease(status.session_ids[0])).task
    sent, had = (orjson.loads(each.model_dump_json()) for each in (task, known))
    return status if sent == had else None


async def keep_session(
    client: PolarClient,
    paths: RunPaths,
    journal: Journal,
    task: TaskRequest,
    result: SessionResult,
    ended_at: float,
) -> None:
    """With its calls and traces, where `polar ls`, `show` and `replay` look. The result is saved last: a session
    that has one is complete."""
    session = Session(
        session_id=result.session_id, task_id=result.task_id, index=result.index, attempt=result.attempt
    )
    await journal.add_session(Lease(session=session, task=task))
    for stage, at in _stage_times(result, ended_at):
        await journal.record_stage(result.session_id, stage, at)
    await _keep_upload(client, result.session_id, paths, journal)
    await journal.save_result(result)


async def _keep_upload(client: PolarClient, session_id: str, paths: RunPaths, journal: Journal) -> None:
    try:
        upload = await client.upload(session_id)
    except ServerError as error:
        if error.status != 404:
            raise
        return  # the session ended without a node, cancelled while it waited
    for call in upload.calls:
        await journal.append_call(call)
    folder = paths.session(session_id).create()
    write_files(upload.files, folder.root)
    make_private(folder.root)
    if upload.trajectory is not None:
        write_trajectory(folder.traces, upload.trajectory)


def _stage_times(result: SessionResult, ended_at: float) -> list[tuple[Stage, float]]:
    """When each stage began, from how long each took."""
    times = [(result.stage, ended_at)]
    for stage in reversed(LIVE_STAGES):
        if stage.value in result.stage_s:
            times.append((stage, times[-1][1] - result.stage_s[stage.value]))
    return times[::-1]
