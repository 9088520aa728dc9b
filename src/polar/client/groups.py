"""Follows groups by cursor, and fetches the trajectories of each when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from polar.client.retries import ServerError
from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.types import FinishedGroup, GroupPage, SessionResult, Trajectory

GROUPS_PER_PAGE = 4
"""Their results are held at once; trajectories, which are larger, of one group only."""
TRAJECTORIES_AT_ONCE = 8

ReadGroups = Callable[[int], Awaitable[GroupPage]]
"""Takes a cursor."""
ReadTrajectory = Callable[[str], Awaitable[Trajectory]]


async def follow_groups(read: ReadGroups, read_trajectory: ReadTrajectory, after: int) -> AsyncGenerator[Group]:
    while True:
        page = await read(after)
        for found in page.groups:
            yield await _whole(found, read_trajectory)
        if page.all_done and len(page.groups) < GROUPS_PER_PAGE:
            return
        after = page.cursor


async def _whole(found: FinishedGroup, read_trajectory: ReadTrajectory) -> Group:
    room = asyncio.Semaphore(TRAJECTORIES_AT_ONCE)

    async def fetch(result: SessionResult) -> FinishedSession:
        async with room:
            try:
                return FinishedSession(result, await read_trajectory(result.session_id))
            except ServerError as error:
                if error.status != 404:
                    raise
                return FinishedSession(result, None)

    try:
        async with asyncio.TaskGroup() as fetching:
            sessions = [fetching.create_task(fetch(result)) for result in found.results]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return Group(found.group_id, tuple(session.result() for session in sessions), found.cursor)
