"""Whatever clients and nodes do in whatever order, also at two servers of one database: what the server counts of
its queue is what the sessions are, no limit is exceeded, and in the end every session has its result."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

import pytest
from desk import LEASE_S, USABLE, Clock, Desk, config_of, task_of
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_counts import check_counts

from polar.server.errors import Conflict, Unauthorized
from polar.server.records import cancel, leases, nodes, results, tasks
from polar.server.state import Change, State
from polar.types import Lease, NodeDrain, Stage, TaskRequest

CREW: tuple[dict[str, Any], ...] = ({}, {"runtimes": ("local",)}, {"labels": ("gpu",)})
"""What each node can."""
KINDS_OF_TASK: tuple[dict[str, Any], ...] = (
    {"enough": 2},
    {"enough": 1, "on_enough": "queued"},
    {"group_max_running": 2, "enough": 5},
    {"max_running": 1},
    {"needs": {"labels": ["gpu"]}, "priority": 1},
)
OFTEN = ("submit", "lease", "lease", "report", "report again", "hand back", "beat", "silence", "cancel")
KINDS = (*OFTEN, *OFTEN, "leave", "drain")
Step = tuple[str, int, int]
"""What is done, and two numbers that say by whom and to what."""
steps = st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(0, 99))


class World:
    """Servers of one database, its nodes, and what each node believes to hold."""

    def __init__(self, desks: Sequence[Desk]) -> None:
        self.desks = desks
        self.workers: list[str] = []
        self.held: list[list[Lease]] = [[] for _ in CREW]
        self.ended: list[tuple[str, Lease]] = []
        self.submitted: list[TaskRequest] = []
        self.numbers = count()

    async def begin(self) -> None:
        desk = self.desks[0]
        self.workers = [await desk.register(f"node {place}", **can) for place, can in enumerate(CREW)]
        for number in range(len(KINDS_OF_TASK)):
            await self._submit(desk, number, 3)

    async def do(self, step: Step, desk: Desk) -> None:
        try:
            await self._do(step, desk)
        except (Conflict, Unauthorized):  # the session was taken away meanwhile, or the node has left
            pass

    async def _do(self, step: Step, desk: Desk) -> None:
        kind, who, what = step
        if kind == "submit":
            await self._submit(desk, who, what)
        elif kind == "cancel":
            await self._cancel(desk, who, what)
        elif kind == "silence":
            desk.clock.advance(LEASE_S / 2)
            await desk.expire()
        else:
            await self._act(desk, kind, who % len(CREW), what)

    async def _act(self, desk: Desk, kind: str, place: int, what: int) -> None:
        """One of the nodes."""
        worker, held = self.workers[place], self.held[place]
        match kind:
            case "lease":
                held += await desk.lease(worker, 1 + what % 5)
            case "report" if held:
                lease = held.pop(what % len(held))
                self.ended.append((worker, lease))
                await desk.report(worker, lease, **(USABLE if what % 4 else {"stage": Stage.FAILED}))
            case "report again" if self.ended:
                await desk.report(*self.ended[what % len(self.ended)], **USABLE)
            case "hand back" if held:
                await desk.hand_back(worker, held.pop(what % len(held)))
            case "beat":
                await desk.beat(worker, *held)
            case "leave":
                await self._leave(desk, place)
            case "drain":
                await desk.state.change(nodes.set_draining, worker, NodeDrain(draining=bool(what % 2)))
            case _:
                pass

    async def _submit(self, desk: Desk, who: int, what: int) -> None:
        """Two tasks of a kind are a group; those of the last kind have none."""
        runtime, number = "docker" if who % 3 == 0 else "local", next(self.numbers)
        again, kind = divmod(number, len(KINDS_OF_TASK))
        group_id = f"g{kind}-{again // 2}" if kind < len(KINDS_OF_TASK) - 1 else None
        fields = {"runtime": runtime, "num_samples": 1 + what % 4, "group_id": group_id}
        task = task_of(f"t{number}", **fields, **KINDS_OF_TASK[kind])

        def submit(change: Change) -> None:  # as the route does
            tasks.submit(change, task)
            results.stop_if_enough(change, task.group)

        await desk.state.change(submit)
        self.submitted.append(task)

    async def _cancel(self, desk: Desk, who: int, what: int) -> None:
        task = self.submitted[what % len(self.submitted)]
        named: tuple[tuple[Literal["session", "task", "group"], str], ...]
        named = (("session", task.session_id(0)), ("task", str(task.task_id)), ("group", task.group))
        kind, name = named[who % 3 if what % 4 == 0 else 0]  # else everything ends early
        await desk.state.change(cancel.cancel, kind, name)

    async def _leave(self, desk: Desk, place: int) -> None:
        """And comes back as another."""
        gone = self.workers[place]
        self.workers[place] = await desk.register(f"node {place}", **CREW[place])
        self.held[place] = []

        def leaving(change: Change) -> None:
            leases.leave(change, gone)
            nodes.remove(change, gone)

        await desk.state.change(leaving)

    async def end(self) -> None:
        """One node that can everything does what is left."""
        desk = self.desks[0]
        node = await desk.register("last", labels=("gpu",))
        desk.clock.advance(LEASE_S)
        await desk.expire()
        while found := await desk.lease(node, 7):
            for lease in found:
                await desk.report(node, lease)
            await check_counts(desk)
        assert await desk.rows("queue") == []


async def play(desks: Sequence[Desk], story: Sequence[Step]) -> None:
    """As many steps at once as there are servers, each at one of them."""
    world = World(desks)
    await world.begin()
    for start in range(0, len(story), len(desks)):
        now = story[start : start + len(desks)]
        await asyncio.gather(*(world.do(step, desk) for step, desk in zip(now, desks, strict=False)))
        await check_counts(desks[0])
    await world.end()


@pytest.mark.check
@given(story=st.lists(steps, min_size=10, max_size=40))
@settings(max_examples=20, deadline=None)
async def test_the_counts_are_right_in_every_story(story: list[Step]) -> None:
    clock = Clock()
    state = await State.open(config_of("sqlite://", turn_sessions=3), clock)
    try:
        await play([Desk(state, clock)], story)
    finally:
        await state.close()


async def test_the_counts_are_right_with_two_servers_at_one_database(database: str, clock: Clock) -> None:
    chance = random.Random(18)
    story = [(chance.choice(KINDS), chance.randrange(100), chance.randrange(100)) for _ in range(200)]
    states = [await State.open(config_of(database, turn_sessions=3), clock) for _ in range(2)]
    try:
        await play([Desk(state, clock) for state in states], story)
    finally:
        for state in states:
            await state.close()
