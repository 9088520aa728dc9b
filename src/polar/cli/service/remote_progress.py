"""Tasks at a server watched until they are done: each result as it comes, and between them the stages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from polar.cli.runs.progress import RunProgress
from polar.client import PolarClient, ServerError
from polar.types import SessionResult

LOOK_EVERY_S = 1.0
ALL = 10_000
"""Sessions of a task: it can have no more."""


async def watch_tasks(
    client: PolarClient, task_ids: Sequence[str], progress: RunProgress, results: list[SessionResult]
) -> None:
    """Fills `results`, so that an interrupted wait keeps those that came."""
    looking = asyncio.create_task(_look(client, task_ids, progress))
    try:
        async for entry in client.results(task_ids=task_ids):
            results.append(entry.result)
            progress.finished(entry.result)
            progress.stage_changed(entry.result.session_id, entry.result.stage, time.time())
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError, ServerError):  # the picture is not worth an error of its own
            await looking


async def _look(client: PolarClient, task_ids: Sequence[str], progress: RunProgress) -> None:
    """By asking, not by the server's events: those begin with the first the server ever had."""
    todo = list(task_ids)
    while todo:
        for task_id in list(todo):
            sessions = await client.sessions(task_id, limit=ALL)
            for session in sessions:
                progress.stage_changed(session.session_id, session.stage, time.time())
            if all(session.stage.final for session in sessions):
                todo.remove(task_id)
        await asyncio.sleep(LOOK_EVERY_S)
