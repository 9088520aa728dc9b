"""Follows results by cursor until all requested tasks are done."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

from polar.types import ResultEntry, ResultPage, TaskStatus

PAGE = 100
"""Results per request; a shorter page ends at the newest result."""
WAIT_S = 30.0
"""How long the server may wait for a result before it answers."""

ReadPage = Callable[[int, float], Awaitable[ResultPage]]
"""Takes a cursor and the seconds to wait for the first result after it."""
ReadTask = Callable[[str], Awaitable[TaskStatus]]
FirstAfter = Callable[[int, str | None], Awaitable[int | None]]
"""Takes a cursor and a task id or None; gives the first cursor after it, None if there is none yet."""


async def follow_results(
    read_page: ReadPage, read_task: ReadTask, task_ids: Collection[str] | None, after: int
) -> AsyncGenerator[ResultEntry]:
    """The results of the given tasks; without tasks all results, endless."""
    open_ids = await _not_done(read_task, task_ids or ())
    while True:
        # Decided before the page is read: a result recorded in between is on this page or a later one.
        all_done = task_ids is not None and not open_ids
        page = await read_page(after, 0.0 if all_done else WAIT_S)
        for entry in page.results:
            if task_ids is None or entry.result.task_id in task_ids:
                yield entry
        if all_done and len(page.results) < PAGE:
            return
        after = page.cursor
        # A task is done with its last result, so only tasks on the page can be done now. After an empty page all
        # are checked, in case a task ended without a result.
        seen = {entry.result.task_id for entry in page.results} if page.results else open_ids
        open_ids = (open_ids - seen) | await _not_done(read_task, open_ids & seen)


async def skip_others(first_after: FirstAfter, task_ids: Collection[str], after: int) -> int:
    """A later cursor before which there is no result of these tasks. The server filters by one task only, and
    following several must not read its whole history: steps that double and then halve find the newest cursor."""
    newest, step = after, PAGE
    while (found := await first_after(newest + step, None)) is not None:
        newest, step = found, step * 2
    while step > PAGE:
        step //= 2
        newest = await first_after(newest + step, None) or newest
    # Read after the newest is known: a result recorded in between is found here, or comes after it.
    firsts = [await first_after(after, task_id) for task_id in sorted(task_ids)]
    return min([newest, *(first - 1 for first in firsts if first is not None)])


async def _not_done(read_task: ReadTask, task_ids: Collection[str]) -> set[str]:
    return {task_id for task_id in sorted(set(task_ids)) if not (await read_task(task_id)).done}
