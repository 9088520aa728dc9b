"""Whatever three nodes do in whatever order, each session ends with exactly one result, never an old attempt's."""

from __future__ import annotations

import random
from collections.abc import Sequence

from desk import LEASE_S, Clock, Desk, config_of
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.server.errors import Conflict
from polar.server.records import cancel
from polar.server.state import State
from polar.types import Lease, Stage

NODES = 3
SESSIONS = 4

Step = tuple[str, int, int]
"""What is done, by which node, to which of its leases."""

KINDS = ["lease", "beat", "silence", "report", "report_old", "cancel", "hand_back", "leave"]
steps = st.tuples(st.sampled_from(KINDS), st.integers(0, NODES - 1), st.integers(0, SESSIONS - 1))


class World:
    """The server, its nodes, and what each node believes to hold: beliefs may be out of date."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.nodes: list[str] = []
        self.believed: list[list[Lease]] = [[] for _ in range(NODES)]
        self.recorded: dict[str, int] = {}
        self.newest: dict[str, int] = {}

    async def begin(self) -> None:
        await self.desk.submit("t", num_samples=SESSIONS)
        self.nodes = [await self.desk.register(f"node {number}") for number in range(NODES)]

    async def do(self, step: Step) -> None:
        kind, node, which = step
        held = self.believed[node]
        lease = held[which % len(held)] if held else None
        match kind:
            case "lease":
                await self._lease(node)
            case "beat":
                await self.desk.beat(self.nodes[node], *held)
                self.desk.clock.advance(LEASE_S / 3)
            case "silence":
                self.desk.clock.advance(LEASE_S / 2)
                await self.desk.expire()
            case "cancel":
                await self.desk.state.change(cancel.cancel, "session", f"t-{which}")
            case "leave":
                self.believed[node] = []  # the process dies and comes back with nothing
            case "hand_back" if lease:
                await self._try_hand_back(node, lease)
            case "report" | "report_old" if lease:
                await self._try_report(node, lease)
            case _:
                pass

    async def _lease(self, node: int) -> None:
        for lease in await self.desk.lease(self.nodes[node], 2):
            session = lease.session
            assert session.attempt > self.newest.get(session.session_id, 0), "an attempt is leased once"
            assert session.session_id not in self.recorded, "a session that ended is not leased"
            self.newest[session.session_id] = session.attempt
            self.believed[node].append(lease)

    async def _try_report(self, node: int, lease: Lease) -> None:
        session = lease.session
        try:
            await self.desk.report(self.nodes[node], lease)
        except Conflict:
            return
        assert session.attempt == self.newest[session.session_id], "an old attempt is never recorded"
        assert self.recorded.setdefault(session.session_id, session.attempt) == session.attempt

    async def _try_hand_back(self, node: int, lease: Lease) -> None:
        try:
            await self.desk.hand_back(self.nodes[node], lease)
        except Conflict:
            return
        assert lease.session.attempt == self.newest[lease.session.session_id]

    async def check(self) -> None:
        page = await self.desk.results()
        ids = [entry.result.session_id for entry in page.results]
        assert len(ids) == len(set(ids))
        for entry in page.results:
            accepted = self.recorded.get(entry.result.session_id)
            assert accepted is None or entry.result.attempt == accepted
        for row in await self.desk.rows("sessions"):
            assert Stage(row["stage"]).final == (row["session_id"] in ids)

    async def end(self) -> None:
        """Everything comes to an end: the leases run out, and one node does what is left."""
        for _ in range(3):
            self.desk.clock.advance(LEASE_S)
            await self.desk.expire()
            for lease in await self.desk.lease(self.nodes[0], SESSIONS):
                await self.desk.report(self.nodes[0], lease)
        assert len((await self.desk.results()).results) == SESSIONS


async def play(desk: Desk, story: Sequence[Step], *, check_every: int = 1) -> None:
    world = World(desk)
    await world.begin()
    for number, step in enumerate(story):
        await world.do(step)
        if number % check_every == 0:
            await world.check()
    await world.end()
    await world.check()


@given(story=st.lists(steps, max_size=40))
@settings(max_examples=40, deadline=None)
async def test_each_session_gets_exactly_one_result(story: list[Step]) -> None:
    clock = Clock()
    state = await State.open(config_of("sqlite://"), clock)
    try:
        await play(Desk(state, clock), story)
    finally:
        await state.close()


async def test_the_same_with_long_stories_in_both_databases(desk: Desk) -> None:
    chance = random.Random(20)
    story = [(chance.choice(KINDS), chance.randrange(NODES), chance.randrange(SESSIONS)) for _ in range(250)]
    # Cancelling often ends everything early, so it is made rare.
    rare = [step for step in story if step[0] != "cancel" or chance.random() < 0.1]
    await play(desk, rare, check_every=10)
