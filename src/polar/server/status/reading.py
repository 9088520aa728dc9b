"""What the database says of the whole service at a scrape: aggregates only, whose cost does not grow with the
number of sessions.

Every server on one database says the same: a query takes the maximum over them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import Metric, SummaryMetricFamily
from sqlalchemy import Connection, func, select

from polar.monitoring.exposition import counter, gauge
from polar.server.overview.engine_rate import newest_uses
from polar.server.overview.snapshot import busy_slots, free_to_lease
from polar.server.overview.stage_counts import sessions_by_stage
from polar.server.overview.stuck import stuck
from polar.server.records import nodes, policy
from polar.server.records.tables import IS_HELD, IS_OPEN, IS_WAITING, callbacks, sessions, tasks
from polar.types import EngineUse, NodeStatus, Policy, Stage

OLDEST = 100
"""How many of the waiting sessions that were submitted first are asked how long they wait: one that runs again
waits for less long than it is old."""
NODE_S = 900.0
"""A node that is gone has series for so long."""
MOST_NODES = 1000
STATES = ("well", "sick", "draining", "lost")
NODE = ("node", "node_id")
OF_A_NODE: dict[str, tuple[str, Callable[[NodeStatus], float]]] = {
    "polar_node_up": ("1: its heartbeats come.", lambda node: node.alive),
    "polar_node_sick": ("1: a part of it fails, and it leases nothing.", lambda node: node.sick is not None),
    "polar_node_draining": ("1: it gets no more sessions.", lambda node: node.draining),
    "polar_node_slots": ("Its run slots.", lambda node: node.slots),
    "polar_node_held_sessions": ("Sessions that it holds a lease of.", lambda node: len(node.sessions)),
    "polar_node_generations": ("Generations under way.", lambda node: node.generating),
}


@dataclass(frozen=True)
class ServiceReading:
    """Is a source of metrics."""

    stages: dict[str, int]
    waiting: int
    oldest_s: float
    busy: int
    known: Sequence[NodeStatus]
    uses: dict[str, EngineUse]
    """By node id."""
    policy: Policy
    callbacks: int
    stuck: int
    now: float
    took_s: float

    def collect(self) -> Iterator[Metric]:
        yield gauge("polar_queue_sessions", "Sessions that wait for a node.", self.waiting)
        waits = "How long the session at the front of the queue has waited; 0: none waits."
        yield gauge("polar_queue_oldest_seconds", waits, self.oldest_s)
        stages = {(stage,): float(count) for stage, count in self.stages.items()}
        yield gauge("polar_sessions", "Sessions in the database by stage.", stages, ["stage"])
        slots = sum(node.slots for node in self.known if free_to_lease(node))
        yield gauge("polar_slots", "Run slots of nodes that are alive, well and not draining.", slots)
        yield gauge("polar_slots_busy", "Sessions in RUNNING at live nodes.", self.busy)
        stuck_for = "Sessions in their stage for longer than they can be if all is well; at most 50 are counted."
        yield gauge("polar_stuck_sessions", stuck_for, self.stuck)
        yield gauge("polar_callbacks_waiting", "Callbacks that are not delivered yet.", self.callbacks)
        yield counter("polar_policy_updates", "Changes of the policy version.", self.policy.updates)
        yield gauge("polar_policy_paused", "1: generation is paused.", self.policy.paused)
        yield gauge("polar_scrape_read_seconds", "What reading these values from the database took.", self.took_s)
        yield from self._of_nodes()
        yield from self._of_engines()

    def _of_nodes(self) -> Iterator[Metric]:
        states = Counter(map(_state, self.known))
        by_state = {(state,): float(states[state]) for state in STATES}
        yield gauge("polar_nodes", "Registered nodes: each is in one state.", by_state, ["state"])
        recent = [node for node in self.known if node.last_seen > self.now - NODE_S][:MOST_NODES]
        for name, (about, value) in OF_A_NODE.items():
            samples = {(node.name, node.node_id): float(value(node)) for node in recent}
            yield gauge(name, about, samples, NODE)

    def _of_engines(self) -> Iterator[Metric]:
        """By the counters in the heartbeats, for those who scrape only the server."""
        named = {(node.name, node.node_id): self.uses[node.node_id] for node in self.known if self._has_use(node)}
        counts = {
            "polar_engine_calls": ("Model calls that ended.", "calls"),
            "polar_engine_failed_calls": ("Of these, how many failed through infrastructure.", "failed_calls"),
            "polar_engine_prompt_tokens": ("Prompt tokens of sampled calls.", "prompt_tokens"),
            "polar_engine_sampled_tokens": ("Tokens that the engine sampled.", "sampled_tokens"),
        }
        for name, (about, field) in counts.items():
            yield counter(name, about, {key: getattr(use, field) for key, use in named.items()}, NODE)
        times = {
            "polar_engine_first_token_seconds": ("From a request to its first token.", "first_token_s"),
            "polar_engine_call_seconds": ("From a request to its last token.", "call_s"),
        }
        for name, (about, field) in times.items():
            family = SummaryMetricFamily(name, about, labels=NODE)
            for key, use in named.items():
                family.add_metric(key, count_value=use.sampled_calls, sum_value=getattr(use, field))
            yield family

    def _has_use(self, node: NodeStatus) -> bool:
        return node.alive and node.node_id in self.uses


def read(connection: Connection, now: float, alive_since: float) -> ServiceReading:
    began = time.perf_counter()
    known = nodes.listing(connection, alive_since)
    stages, current = sessions_by_stage(connection), policy.current(connection)
    leased = select(func.count()).select_from(sessions).where(IS_HELD, sessions.c.stage == Stage.QUEUED.value)
    undelivered = select(func.count()).select_from(callbacks).where(callbacks.c.due.is_not(None))
    return ServiceReading(
        stages=stages,
        # Not counted one by one: the queue may be long, and few sessions are leased and not begun.
        waiting=max(0, stages[Stage.QUEUED.value] - connection.execute(leased).scalar_one()),
        oldest_s=_oldest_s(connection, now),
        busy=busy_slots(connection, known),
        known=known,
        uses=newest_uses(connection, alive_since),
        policy=current,
        callbacks=connection.execute(undelivered).scalar_one(),
        stuck=len(stuck(connection, now, known, paused=current.paused)),
        now=now,
        took_s=time.perf_counter() - began,
    )


def _oldest_s(connection: Connection, now: float) -> float:
    since = func.coalesce(sessions.c.since, tasks.c.submitted)
    query = (
        select(since)
        .join_from(sessions, tasks, tasks.c.task_id == sessions.c.task_id)
        .where(IS_OPEN, IS_WAITING)  # both, so that the index by number of open sessions serves
        .order_by(sessions.c.number)
        .limit(OLDEST)
    )
    found = connection.execute(query).scalars()
    return max((now - at for at in found), default=0.0)


def _state(node: NodeStatus) -> str:
    if not node.alive:
        return "lost"
    if node.sick is not None:
        return "sick"
    return "draining" if node.draining else "well"
