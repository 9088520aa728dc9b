"""Keeps groups of sessions under way at the rollout service, hands them out as they finish, and sees how busy
generation is meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from polar.client import PolarClient, ServerError
from polar.credit.group import Group
from polar.errors import PolarError
from polar.types import SessionResult, TaskRequest

LOGGER = logging.getLogger("polar.trainers")
LOOK_S = 0.25
"""Between two looks at the server."""
MOST_TRIES = 3
"""Of a task that loses all of its sessions. Then it is left out."""
CANCEL_S = 10.0
"""How long the server may take to cancel what is under way. One that is gone does not hold up a checkpoint."""
NEWEST_TASKS = 10_000
"""How far back a start looks for what earlier ones have left: far more than a run has under way."""

MakeTask = Callable[[int, int], TaskRequest]
"""Takes the number of a task and of the try, from 0."""


@dataclass(frozen=True)
class NumberedGroup:
    number: int
    """Of its task in the task stream."""
    group: Group
    tried: int = 0
    """Tries before this one."""

    @property
    def lost(self) -> bool:
        """No session of it says anything about the policy."""
        return not self.group.rewards


class Rollouts:
    """Tasks are numbered; `trained` has those that a resumed run has trained on already. Use it as
    `async with`: at the end, sessions that are still under way are cancelled. No more are started than `steps`
    batches need.

    A task that loses all of its sessions is tried again. If as many different tasks in a row are lost as a step
    takes, what is wrong is not theirs, and `batch` raises `PolarError`."""

    def __init__(
        self,
        client: PolarClient,
        make_task: MakeTask,
        *,
        per_step: int,
        ahead: int,
        steps: int,
        trained: Iterable[int] = (),
    ) -> None:
        self._client = client
        self._make_task = make_task
        self._per_step = per_step
        self._ahead = ahead
        self._wanted = steps * per_step
        """Groups that are still to be handed out."""
        self._trained = set(trained)
        self._next = 0
        self._under_way: dict[asyncio.Task[NumberedGroup], TaskRequest] = {}
        self._finished: list[NumberedGroup] = []
        self._lost_in_a_row: set[int] = set()
        """Different tasks: tries of one may come in a row, and its loss may be its own fault."""

    async def __aenter__(self) -> Rollouts:
        self.refill()
        return self

    async def __aexit__(self, *_: object) -> None:
        for waiting in self._under_way:
            waiting.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await cancel_tasks(self._client, [str(task.task_id) for task in self._under_way.values()])

    @property
    def trained(self) -> list[int]:
        return sorted(self._trained)

    def refill(self) -> None:
        """Starts as many groups as may run before the next batch is trained."""
        most = min(self._wanted, (1 + self._ahead) * self._per_step)
        while len(self._under_way) + len(self._finished) < most:
            number = self._next
            self._next += 1
            if number not in self._trained:
                self._start(number)

    async def batch(self, on_progress: Callable[[int], None] = lambda _: None) -> list[NumberedGroup]:
        """The next groups that have finished, as many as a step trains on. `on_progress`: how many there are."""
        while len(self._finished) < self._per_step:
            on_progress(len(self._finished))
            done, _ = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            for waiting in done:
                del self._under_way[waiting]
                self._take(waiting.result())
            self.refill()
        self._finished.sort(key=lambda each: each.number)  # older first: they are stale sooner
        batch, self._finished = self._finished[: self._per_step], self._finished[self._per_step :]
        self._wanted -= len(batch)
        self._trained.update(each.number for each in batch)
        return batch

    def _start(self, number: int, tried: int = 0) -> None:
        task = self._make_task(number, tried)
        self._under_way[asyncio.create_task(self._sample(number, tried, task))] = task

    def _take(self, found: NumberedGroup) -> None:
        if not found.lost:
            self._lost_in_a_row.clear()
            self._finished.append(found)
            return
        self._lost_in_a_row.add(found.number)
        results = [session.result for session in found.group.sessions]
        why = f"all sessions of task {found.number} are lost: {commonest_failure(results)}"
        if len(self._lost_in_a_row) >= max(MOST_TRIES, self._per_step):
            raise PolarError(f"{len(self._lost_in_a_row)} tasks in a row gave nothing to train on; {why}")
        if found.tried + 1 < MOST_TRIES:
            LOGGER.warning("%s; it is tried again", why)
            self._start(found.number, found.tried + 1)
        else:
            LOGGER.warning("%s; after %d tries it is left out", why, MOST_TRIES)
            self._trained.add(found.number)

    async def _sample(self, number: int, tried: int, task: TaskRequest) -> NumberedGroup:
        submitted = await self._client.submit(task)
        async with aclosing(self._client.groups(task_ids=[submitted.task_id])) as groups:
            async for group in groups:
                return NumberedGroup(number, group, tried)
        raise ServerError(f"task {submitted.task_id} ended without a group", status=500)


def commonest_failure(results: Iterable[SessionResult]) -> str:
    """Of sessions that say nothing about the policy: why most of them do not."""
    reasons = Counter(
        f"{result.failure.where}: {result.failure.message}" if result.failure else str(result.untrainable_reason)
        for result in results
    )
    [(reason, _)] = reasons.most_common(1) or [("it has none", 0)]
    return reason


async def cancel_tasks(client: PolarClient, task_ids: Iterable[str]) -> None:
    """Also those that may not have reached the server. A server that is gone must not hide an earlier error."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_S):
            await asyncio.gather(*map(client.cancel_task, task_ids), return_exceptions=True)


async def cancel_earlier(client: PolarClient, run_id: str) -> None:
    """What earlier starts of a run have left at the server because they were killed."""
    known = await client.tasks(limit=NEWEST_TASKS)
    left = [status.task_id for status in known if status.task_id.startswith(f"{run_id}-") and not status.done]
    await cancel_tasks(client, left)


class GenerationWatch:
    """Asks the server again and again how many generations its nodes have under way. The nodes report that with
    their heartbeats, so it is as exact as `server.heartbeat_s`."""

    def __init__(self, client: PolarClient) -> None:
        self._client = client
        self._seen: list[int] = []

    async def __aenter__(self) -> GenerationWatch:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking

    def figures(self) -> dict[str, float]:
        """Since the last call: the share of time in which anything was generated, and how much at once."""
        seen, self._seen = self._seen, []
        if not seen:
            return {}
        return {"generating": sum(seen) / len(seen), "generation_busy": sum(map(bool, seen)) / len(seen)}

    async def _look(self) -> None:
        while True:
            with suppress(PolarError):  # a figure, no reason to stop
                self._seen.append((await self._client.drain()).generating)
            await asyncio.sleep(LOOK_S)
