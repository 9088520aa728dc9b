"""Where an export takes its sessions from: a run on disk, or a rollout server. Both give one group at a time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple

from polar.client import PolarClient, ServerError
from polar.credit.group import Group
from polar.data.export.plan import ExportedGroup, ExportedSession, ExportPlan
from polar.errors import PolarError
from polar.runs.stored import StoredRun, StoredSession
from polar.runtimes.host.threads import in_thread
from polar.store.journal import Journal
from polar.store.trajectories import TrajectoryUnreadable, read_trajectory
from polar.types import SessionResult, TaskRequest, Trajectory

ALL_TASKS = 10_000
"""The most that one request to a server lists."""
GROUPS_AT_ONCE = 1_000
UPLOADS_AT_ONCE = 4


class ExportSource(NamedTuple):
    groups: AsyncGenerator[ExportedGroup]
    sessions: int
    """How many there are to look at."""


def run_source(run: StoredRun, plan: ExportPlan) -> ExportSource:
    """Raises `PolarError` if the plan names a task or group that the run does not have."""
    members = defaultdict[str, list[StoredSession]](list)
    for session in run:
        members[session.task.group].append(session)
    _check_known(plan.task_ids, {session.lease.session.task_id for session in run}, "task")
    _check_known(plan.group_ids, members, "group")
    wanted = {
        group_id: sessions
        for group_id, sessions in members.items()
        if any(plan.has_task(session.lease.session.task_id, group_id) for session in sessions)
    }
    return ExportSource(_groups_of_run(run, wanted, plan), sum(map(len, wanted.values())))


async def _groups_of_run(
    run: StoredRun, wanted: dict[str, list[StoredSession]], plan: ExportPlan
) -> AsyncGenerator[ExportedGroup]:
    async with await Journal.open(run.paths.journal, read_only=True) as journal:
        for group_id, members in wanted.items():
            ended = [(session, session.result) for session in members if session.result is not None]
            sessions = [await exported_session(session, result, journal, plan) for session, result in ended]
            yield ExportedGroup(group_id, tuple(sessions), len(members) - len(ended))


async def exported_session(
    session: StoredSession, result: SessionResult, journal: Journal, plan: ExportPlan
) -> ExportedSession:
    try:
        trajectory = await in_thread(_trajectory, session)
    except TrajectoryUnreadable as error:  # the other sessions go on
        return ExportedSession(session.task, result, None, problem=str(error))
    calls = await journal.calls(session.session_id) if plan.takes_calls_of(trajectory) else []
    return ExportedSession(session.task, result, trajectory, tuple(calls))


def _trajectory(session: StoredSession) -> Trajectory | None:
    path = session.run.session(session.session_id).traces
    return read_trajectory(path) if path.exists() else None


async def server_source(client: PolarClient, plan: ExportPlan) -> ExportSource:
    """The groups that are done now: an export does not wait for sessions that still run."""
    wanted = await _group_ids(client, plan)
    statuses = [await client.group(group_id) for group_id in wanted]
    done = [status.group_id for status in statuses if status.done]
    waiting = [ExportedGroup(each.group_id, (), each.sessions) for each in statuses if not each.done]
    return ExportSource(_groups_of_server(client, done, waiting, plan), sum(each.sessions for each in statuses))


async def _group_ids(client: PolarClient, plan: ExportPlan) -> list[str]:
    if plan.task_ids or plan.group_ids:
        tasks = [await client.task(task_id) for task_id in sorted(plan.task_ids)]
        found = [*(task.group_id or task.task_id for task in tasks), *sorted(plan.group_ids)]
        return list(dict.fromkeys(found))
    newest_first = await client.tasks(limit=ALL_TASKS)
    if len(newest_first) == ALL_TASKS:
        raise PolarError(f"the server has {ALL_TASKS} tasks or more: choose some with --task or --group")
    return list(dict.fromkeys(task.group_id or task.task_id for task in reversed(newest_first)))


async def _groups_of_server(
    client: PolarClient, done: Sequence[str], waiting: Sequence[ExportedGroup], plan: ExportPlan
) -> AsyncGenerator[ExportedGroup]:
    for group in waiting:
        yield group
    for start in range(0, len(done), GROUPS_AT_ONCE):
        group_ids = done[start : start + GROUPS_AT_ONCE]
        async for group in client.groups(group_ids=group_ids):
            yield await _served(client, group, plan)


async def _served(client: PolarClient, group: Group, plan: ExportPlan) -> ExportedGroup:
    room = asyncio.Semaphore(UPLOADS_AT_ONCE)
    tasks: dict[str, TaskRequest] = {}
    for session in group.sessions:
        if session.result.task_id not in tasks:
            tasks[session.result.task_id] = (await client.lease(session.result.session_id)).task

    async def whole(result: SessionResult, trajectory: Trajectory | None) -> ExportedSession:
        if not plan.takes_calls_of(trajectory):
            return ExportedSession(tasks[result.task_id], result, trajectory)
        async with room:
            try:
                calls = (await client.upload(result.session_id)).calls
            except ServerError as error:
                if error.status != 404:
                    raise
                calls = ()
        return ExportedSession(tasks[result.task_id], result, trajectory, calls)

    try:
        async with asyncio.TaskGroup() as fetching:
            made = [fetching.create_task(whole(*session)) for session in group.sessions]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return ExportedGroup(group.group_id, tuple(each.result() for each in made))


def _check_known(wanted: Iterable[str], known: Iterable[str], what: str) -> None:
    if unknown := sorted(set(wanted) - set(known)):
        raise PolarError(f"no {what} {unknown[0]!r} in this run; there are: {', '.join(sorted(known)[:10])}")
