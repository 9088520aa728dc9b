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
NO_TRACES, REMOVED = 404, 410
"""The server's status if a session never had traces, and if retention has removed them."""

ReadGroups = Callable[[int], Awaitable[GroupPage]]
"""Takes a cursor."""
ReadTrajectory = Callable[[str], Awaitable[Trajectory]]


async def follow_groups(
    read: ReadGroups, read_trajectory: ReadTrajectory, after: int, *, allow_gap: bool = False
) -> AsyncGenerator[Group]:
    """`allow_gap`: sessions whose traces retention has removed come with their result alone."""
    missing = {NO_TRACES, REMOVED} if allow_gap else {NO_TRACES}

    async def fetch(result: SessionResult) -> FinishedSession:
        try:
            return FinishedSession(result, await read_trajectory(result.session_id))
        except ServerError as error:
            if error.status not in missing:
                raise
            return FinishedSession(result, None)

    while True:
        page = await read(after)
        for found in page.groups:
            yield await _whole(found, fetch)
        if page.all_done and len(page.groups) < GROUPS_PER_PAGE:
            return
        after = page.cursor


async def _whole(found: FinishedGroup, fetch: Callable[[SessionResult], Awaitable[FinishedSession]]) -> Group:
    room = asyncio.Semaphore(TRAJECTORIES_AT_ONCE)

    async def in_turn(result: SessionResult) -> FinishedSession:
        async with room:
            return await fetch(result)

    try:
        async with asyncio.TaskGroup() as fetching:
            sessions = [fetching.create_task(in_turn(result)) for result in found.results]
    except BaseExceptionGroup as errors:
        raise _about(found, errors.exceptions[0]) from None
    return Group(found.group_id, tuple(session.result() for session in sessions), found.cursor)


def _about(found: FinishedGroup, error: BaseException) -> BaseException:
    """The error; if retention has removed traces of this group, with the ways on."""
    if not isinstance(error, ServerError) or error.status != REMOVED:
        return error
    message = (
        f"group {found.group_id!r} is not whole any more: {error.detail}. Pass after={found.cursor} to go on "
        "after this group, or allow_gap=True to take what is left of it"
    )
    return ServerError(message, status=REMOVED)
