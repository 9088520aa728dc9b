"""Watches tasks at a server until they are done: each result as it comes, and the stages in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from polar.cli.runs.progress import RunProgress
from polar.client import PolarClient, ServerError

LOOK_EVERY_S = 1.0
ALL = 10_000
"""The most sessions a task can have."""


async def watch_tasks(client: PolarClient, task_ids: Sequence[str], progress: RunProgress) -> None:
    """Until every session of the tasks has its result."""
    progress.phase("")
    looking = asyncio.create_task(_look(client, task_ids, progress))
    try:
        async for entry in client.results(task_ids=task_ids):
            progress.finished(entry.result)
            progress.stage_changed(entry.result.session_id, entry.result.stage, time.time())
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError, ServerError):  # only the display depends on it
            await looking


async def _look(client: PolarClient, task_ids: Sequence[str], progress: RunProgress) -> None:
    """Polls: the server's events would begin with its very first."""
    todo = list(task_ids)
    while todo:
        for task_id in list(todo):
            sessions = await client.sessions(task_id, limit=ALL)
            for session in sessions:
                progress.stage_changed(session.session_id, session.stage, time.time())
            if all(session.stage.final for session in sessions):
                todo.remove(task_id)
        progress.waits = (await client.task(todo[0])).waits if todo else ""
        await asyncio.sleep(LOOK_EVERY_S)
