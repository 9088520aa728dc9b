"""Results as they come: read by cursor, ended when everything that was asked for has its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

from polar.types import ResultEntry, ResultPage, TaskStatus

PAGE = 100
"""Results asked for at once; a shorter page ends at the newest result there is."""
WAIT_S = 30.0
"""How long the server may hold a request until there is a result."""

ReadPage = Callable[[int, float], Awaitable[ResultPage]]
"""The results after a cursor; waits so many seconds for the first."""
ReadTask = Callable[[str], Awaitable[TaskStatus]]
FirstAfter = Callable[[int, str | None], Awaitable[int | None]]
"""The first cursor after another, of a task or of any; None: there is none yet."""


async def follow_results(
    read_page: ReadPage, read_task: ReadTask, task_ids: Collection[str] | None, after: int
) -> AsyncGenerator[ResultEntry]:
    """The results of the given tasks, or of all and without end."""
    open_ids = await _not_done(read_task, task_ids or ())
    while True:
        # Known before the page is read: what is recorded in between is on this page or a later one.
        all_done = task_ids is not None and not open_ids
        page = await read_page(after, 0.0 if all_done else WAIT_S)
        for entry in page.results:
            if task_ids is None or entry.result.task_id in task_ids:
                yield entry
        if all_done and len(page.results) < PAGE:
            return
        after = page.cursor
        # A task is done with its last result, so only those on the page can have become so. After a wait in vain
        # all are asked for, lest one that was settled without a result is waited for for ever.
        heard_of = {entry.result.task_id for entry in page.results} if page.results else open_ids
        open_ids = (open_ids - heard_of) | await _not_done(read_task, open_ids & heard_of)


async def skip_others(first_after: FirstAfter, task_ids: Collection[str], after: int) -> int:
    """A later cursor that misses nothing of the tasks. The server filters by one task only, and who follows
    several shall not read all it ever did: the newest cursor is found by steps that double and then halve."""
    newest, step = after, PAGE
    while (found := await first_after(newest + step, None)) is not None:
        newest, step = found, step * 2
    while step > PAGE:
        step //= 2
        newest = await first_after(newest + step, None) or newest
    # Asked after the newest is known: what is recorded in between is found here, or stands behind it.
    firsts = [await first_after(after, task_id) for task_id in sorted(task_ids)]
    return min([newest, *(first - 1 for first in firsts if first is not None)])


async def _not_done(read_task: ReadTask, task_ids: Collection[str]) -> set[str]:
    return {task_id for task_id in sorted(set(task_ids)) if not (await read_task(task_id)).done}
