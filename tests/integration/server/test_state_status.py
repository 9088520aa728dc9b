"""Metrics of the server are what the database and its changes say; readiness is tried. SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from desk import LEASE_S, Desk
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, text

from polar.monitoring.exposition import exposition
from polar.monitoring.readiness import Readiness
from polar.server.records import callbacks, cancel, nodes, policy
from polar.server.records.tables import SCHEMA_VERSION
from polar.server.state import Change
from polar.server.status.checks import checks_of
from polar.server.status.reading import NODE_S, read
from polar.types import EngineUse, Failure, Heartbeat, NodeDrain, PolicyChange, Score, Sickness, Stage
from polar.types.trace import TrajectoryStatistics

BY_AGENT = {
    "stage": Stage.FAILED,
    "failure": Failure(where="harness", type="ExitCode", message="1", agent=True),
}
MERGED = {"statistics": TrajectoryStatistics(append_only_pairs=4, merged_pairs=3)}


class Scraped:
    def __init__(self, body: bytes) -> None:
        families = list(text_string_to_metric_families(body.decode()))
        self.types = {family.name: family.type for family in families}
        self.samples = [
            (sample.name, dict(sample.labels), sample.value) for family in families for sample in family.samples
        ]

    def sum(self, name: str, **labels: str) -> float:
        found = [v for each, own, v in self.samples if each == name and labels.items() <= own.items()]
        assert found, f"there is no {name} {labels}"
        return sum(found)

    def has(self, name: str, **labels: str) -> bool:
        return any(each == name and labels.items() <= own.items() for each, own, _ in self.samples)


async def scrape(desk: Desk) -> Scraped:
    reading = await desk.state.read(read, desk.clock(), desk.state.alive_since)
    return Scraped(exposition(desk.state.counts.meters, reading))


async def test_an_empty_service_has_every_series_that_an_alert_needs(desk: Desk) -> None:
    found = await scrape(desk)
    for name in ("queue_sessions", "queue_oldest_seconds", "slots", "slots_busy", "stuck_sessions"):
        assert found.sum(f"polar_{name}") == 0
    for name in ("leases_lost", "database_errors", "policy_updates", "sessions_stale", "callbacks"):
        assert found.sum(f"polar_{name}_total") == 0
    assert {own["stage"] for name, own, _ in found.samples if name == "polar_sessions"} == {*Stage}


async def test_the_queue_is_what_no_node_has_leased(desk: Desk) -> None:
    node = await desk.register()
    await desk.submit("first", num_samples=3)
    desk.clock.advance(30)
    await desk.submit("second", num_samples=2, priority=9)
    desk.clock.advance(5)
    found = await scrape(desk)
    assert (found.sum("polar_queue_sessions"), found.sum("polar_queue_oldest_seconds")) == (5, 35)
    await desk.lease(node, 2)  # of the second task, by priority: leased, and still QUEUED
    found = await scrape(desk)
    assert (found.sum("polar_queue_sessions"), found.sum("polar_sessions", stage="QUEUED")) == (3, 5)
    await desk.lease(node, 3)
    found = await scrape(desk)
    assert (found.sum("polar_queue_sessions"), found.sum("polar_queue_oldest_seconds")) == (0, 0)


async def test_a_session_that_runs_again_does_not_hide_one_that_waits_longer(desk: Desk) -> None:
    node = await desk.register()
    await desk.submit("early")
    lease = await desk.lease_one(node)
    await desk.submit("late")
    desk.clock.advance(20)
    await desk.hand_back(node, lease)
    desk.clock.advance(1)
    found = await scrape(desk)
    assert (found.sum("polar_queue_sessions"), found.sum("polar_queue_oldest_seconds")) == (2, 21)


async def test_ended_sessions_are_counted_by_cause_once_each(desk: Desk) -> None:
    node = await desk.register()
    await desk.submit("add", num_samples=4, harness={"name": "pi"})
    first, second, third, fourth = await desk.lease(node, 4)
    await desk.report(node, first, score=Score(reward=1.0), policy_updates=2, **MERGED)
    await desk.report(node, first, score=Score(reward=1.0), policy_updates=2, **MERGED)  # its answer was lost
    await desk.report(node, second, **BY_AGENT)
    await desk.report(node, third, stale=True, policy_updates=5)
    await desk.beat(node, fourth)
    await desk.state.change(cancel.cancel, "task", "add")
    desk.clock.advance(LEASE_S + 1)
    await desk.expire()
    found = await scrape(desk)
    ended = "polar_sessions_ended_total"
    assert found.sum(ended) == 4 and found.types["polar_sessions_ended"] == "counter"
    assert found.sum(ended, stage="COMPLETED", where="") == 2
    cause = {"stage": "FAILED", "failed_by": "agent", "where": "harness", "type": "ExitCode"}
    assert found.sum(ended, **cause) == 1
    assert found.sum(ended, stage="CANCELLED") == 1
    assert found.sum("polar_call_pairs_total", harness="pi", merged="yes") == 3
    assert found.sum("polar_call_pairs_total", harness="pi", merged="no") == 1
    assert found.sum("polar_session_policy_updates_bucket", le="2.0") == 3
    assert found.sum("polar_session_policy_updates_sum") == 7
    assert found.sum("polar_sessions_stale_total") == 1
    assert found.sum("polar_leases_lost_total") == 1


async def test_a_change_that_is_rolled_back_counts_nothing(desk: Desk) -> None:
    def fail(change: Change) -> None:
        change.counts.append(lambda counts: counts.leases_lost(9))
        raise RuntimeError("after it had counted")

    with pytest.raises(RuntimeError):
        await desk.state.change(fail)
    before = (await scrape(desk)).sum("polar_database_change_seconds_count")
    assert (await scrape(desk)).sum("polar_leases_lost_total") == 0
    await desk.register()
    found = await scrape(desk)
    assert found.sum("polar_database_change_seconds_count") == before + 1
    assert found.sum("polar_database_errors_total") == 0


async def test_causes_that_nodes_make_up_are_bounded(desk: Desk) -> None:
    node = await desk.register()
    await desk.submit("add", num_samples=250)
    for number, lease in enumerate(await desk.lease(node, 250)):
        failure = Failure(where="harness", type=f"Made{number}", message="x")
        await desk.report(node, lease, stage=Stage.FAILED, failure=failure)
    found = await scrape(desk)
    series = [own for name, own, _ in found.samples if name == "polar_sessions_ended_total"]
    assert len(series) == 201 and found.sum("polar_sessions_ended_total", where="other", type="other") == 50


async def test_nodes_and_their_engines(desk: Desk) -> None:
    well, sick, draining = [await desk.register(name, slots=3) for name in ("same", "same", "third")]
    use = EngineUse(calls=7, failed_calls=1, sampled_calls=4, prompt_tokens=90, sampled_tokens=33, call_s=8.0)
    await _beat(desk, well, Heartbeat(generating=2, use=use))
    await _beat(desk, sick, Heartbeat(sick=Sickness(part="engine", why="away", since=1.0)))
    await desk.state.change(nodes.set_draining, draining, NodeDrain())
    await desk.submit("add", num_samples=2)
    leases = await desk.lease(well, 2)
    await desk.beat(well, leases[0])
    found = await scrape(desk)
    assert (found.sum("polar_slots"), found.sum("polar_slots_busy")) == (3, 1)
    states = {state: found.sum("polar_nodes", state=state) for state in ("well", "sick", "draining", "lost")}
    assert states == {"well": 1, "sick": 1, "draining": 1, "lost": 0}
    # Two nodes may have one name, as containers do: a series for each all the same.
    assert found.sum("polar_node_up", node="same") == 2
    assert found.sum("polar_node_held_sessions", node_id=well) == 2
    assert found.sum("polar_engine_sampled_tokens_total", node_id=well) == 33
    assert found.sum("polar_engine_call_seconds_sum", node_id=well) == 8
    assert found.sum("polar_engine_call_seconds_count", node_id=well) == 4
    desk.clock.advance(LEASE_S + 1)
    found = await scrape(desk)
    assert found.sum("polar_nodes", state="lost") == 3 and found.sum("polar_node_up") == 0
    assert not found.has("polar_engine_calls_total"), "a lost node's counters would look like a standstill"
    desk.clock.advance(NODE_S)
    found = await scrape(desk)
    assert found.sum("polar_nodes", state="lost") == 3 and not found.has("polar_node_up")


async def _beat(desk: Desk, node_id: str, beat: Heartbeat) -> None:
    from polar.server.records import leases

    await desk.state.change(leases.heartbeat, node_id, beat)


async def test_policy_and_callbacks(desk: Desk) -> None:
    await desk.state.change(policy.put, PolicyChange(version="7", paused=True))
    node = await desk.register()
    await desk.submit("add", num_samples=2, callback_url="https://trainer.example/hook")
    for lease in await desk.lease(node, 2):
        await desk.report(node, lease)
    found = await scrape(desk)
    assert found.sum("polar_policy_updates_total") == 1 and found.sum("polar_policy_paused") == 1
    assert found.sum("polar_callbacks_waiting") == 2
    due = await desk.state.read(callbacks.next_due, desk.clock(), (), ())
    assert due is not None
    await desk.state.change(callbacks.failed, due, "status 500")
    await desk.state.change(callbacks.delivered, due)
    found = await scrape(desk)
    assert found.sum("polar_callbacks_waiting") == 1
    outcomes = {
        outcome: found.sum("polar_callbacks_total", outcome=outcome) for outcome in ("failed", "delivered")
    }
    assert outcomes == {"failed": 1, "delivered": 1}


async def test_a_database_that_another_polar_migrated_is_not_ready(desk: Desk) -> None:
    async def report() -> dict[str, Any]:
        return (await Readiness(checks_of(desk.state)).report()).body()

    def set_version(change: Change, version: int) -> None:
        change.connection.execute(text(f"UPDATE polar_server SET version = {version}"))

    well = await report()
    assert (well["ready"], well["checks"]["database"]) == (True, "ok")
    await desk.state.change(set_version, SCHEMA_VERSION + 1)
    found = await report()
    assert found["ready"] is False and f"needs {SCHEMA_VERSION}" in found["checks"]["database"]
    await desk.state.change(set_version, SCHEMA_VERSION)
    assert (await report())["ready"] is True


async def test_a_database_that_only_reads_is_not_ready(desk: Desk) -> None:
    def read_only(connection: Connection) -> None:
        is_sqlite = connection.dialect.name == "sqlite"
        connection.exec_driver_sql(
            "PRAGMA query_only = 1" if is_sqlite else "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"
        )
        if not is_sqlite:
            connection.commit()

    await desk.state.read(read_only)
    report = await Readiness(checks_of(desk.state)).report()
    assert report.status == 503 and "read" in report.problems["database"]
    assert (await scrape(desk)).sum("polar_database_errors_total") == 1
