"""Keeps groups of sessions under way at the rollout service, hands them out as they finish, and sees how busy
generation is meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from polar.client import PolarClient, ServerError
from polar.credit.group import Group
from polar.errors import PolarError
from polar.types import TaskRequest

LOOK_S = 0.25
"""Between two looks at the server."""


@dataclass(frozen=True)
class NumberedGroup:
    number: int
    """Of its task in the task stream."""
    group: Group


class Rollouts:
    """Tasks are numbered; `trained` has those that a resumed run has trained on already. Use it as
    `async with`: at the end, sessions that are still under way are cancelled. No more are started than `steps`
    batches need."""

    def __init__(
        self,
        client: PolarClient,
        make_task: Callable[[int], TaskRequest],
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

    async def __aenter__(self) -> Rollouts:
        self.refill()
        return self

    async def __aexit__(self, *_: object) -> None:
        for waiting in self._under_way:
            waiting.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await cancel_tasks(self._client, self._under_way.values())

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
                task = self._make_task(number)
                self._under_way[asyncio.create_task(self._sample(number, task))] = task

    async def batch(self) -> list[NumberedGroup]:
        """The next groups that have finished, as many as a step trains on."""
        while len(self._finished) < self._per_step:
            done, _ = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            for waiting in done:
                del self._under_way[waiting]
                self._finished.append(waiting.result())
        self._finished.sort(key=lambda each: each.number)  # older first: they are stale sooner
        batch, self._finished = self._finished[: self._per_step], self._finished[self._per_step :]
        self._wanted -= len(batch)
        self._trained.update(each.number for each in batch)
        return batch

    async def _sample(self, number: int, task: TaskRequest) -> NumberedGroup:
        submitted = await self._client.submit(task)
        async with aclosing(self._client.groups(task_ids=[submitted.task_id])) as groups:
            async for group in groups:
                return NumberedGroup(number, group)
        raise ServerError(f"task {submitted.task_id} ended without a group", status=500)


async def cancel_tasks(client: PolarClient, tasks: Iterable[TaskRequest]) -> None:
    """Also those that may not have reached the server. A server that is gone must not hide an earlier error."""
    for task in tasks:
        with suppress(PolarError):
            await client.cancel_task(str(task.task_id))


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
