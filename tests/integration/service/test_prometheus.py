"""Every query of the shipped Grafana board returns data from a real Prometheus that scrapes a real run: server and
node are processes of their own; sessions complete, fail, wait, grow stale and break their traces."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_process import DEPLOY, Prometheus

from polar.client import PolarClient
from ports import port_to_come_back_to
from service_bench import AGENT, CONFIG, ServiceBench, agent_task
from waiting import hang_limit, until

ODD_AGENT = f"{sys.executable} {Path(__file__).parent / 'odd_agent.py'}"
RATE_INTERVAL = "10m"
"""All of the run, however slow the machine."""


def board_queries() -> list[str]:
    board = json.loads((DEPLOY / "grafana/polar.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [expression.replace("$__rate_interval", RATE_INTERVAL) for expression in expressions]


@pytest.fixture
async def watched(bench: ServiceBench) -> AsyncIterator[Prometheus]:
    """Prometheus scrapes a server and a node of `bench`."""
    port = port_to_come_back_to()
    (bench.folder / "polar.toml").write_text(f"{CONFIG}\n[node]\nmetrics_port = {port}\n")
    await bench.start_server()
    bench.start_node()
    targets = {"polar-server": [bench.address.removeprefix("http://")], "polar-gateway": [f"127.0.0.1:{port}"]}
    prometheus = Prometheus(bench.folder / "prometheus", bench.folder / "secrets/metrics-token", targets)
    try:
        await prometheus.until_it_scrapes(2)
        yield prometheus
    finally:
        prometheus.close()


async def one_round(bench: ServiceBench, client: PolarClient, name: str) -> None:
    """Three sessions that work, one that fails, one that breaks its traces, and a policy update under another."""
    go, here = bench.folder / f"{name}.go", bench.folder / f"{name}.here"
    held = f"{AGENT}; touch {here}; while [ ! -e {go} ]; do sleep 0.05; done"
    tasks = [
        agent_task(task_id=f"{name}-good", num_samples=3),
        agent_task("exit 3", task_id=f"{name}-bad"),
        agent_task(ODD_AGENT, task_id=f"{name}-odd"),
        agent_task(held, task_id=f"{name}-held"),
    ]
    for task in tasks:
        await client.submit(task)
    await until(here.exists)
    await client.set_policy_version(name)
    await until(lambda: _heard(client))
    go.touch()
    async with hang_limit():
        results = [entry.result async for entry in client.results(task_ids=[task.task_id for task in tasks])]
    assert sum(result.failure is not None for result in results) == 1, [result.failure for result in results]
    assert max(result.policy_updates for result in results) == 1


async def _heard(client: PolarClient) -> bool:
    nodes = await client.nodes()
    return bool(nodes) and all(node.heard for node in nodes)


@pytest.mark.check
async def test_every_query_of_the_board_returns_data(bench: ServiceBench, watched: Prometheus) -> None:
    async with bench.client() as client:
        await one_round(bench, client, "first")
        # A series that begins in a round has a rate after the next one.
        await until(lambda: _has(watched, "sum(polar_sessions_ended_total)", 6), pause_s=0.2)
        await one_round(bench, client, "second")
        go = bench.folder / "end"
        await client.submit(agent_task(f"while [ ! -e {go} ]; do sleep 0.05; done", task_id="w", num_samples=12))
        await until(lambda: _has(watched, "sum(polar_sessions_ended_total)", 12), pause_s=0.2)
        # Three run, two are set up, the others wait.
        await until(lambda: _has(watched, "max(polar_slots_busy)", 3), pause_s=0.2)
        await until(lambda: _has(watched, "max(polar_queue_sessions)", 7), pause_s=0.2)

        queries = board_queries()
        assert len(queries) > 40
        assert await watched.without_data(["polar_nowhere", "up"]) == ["polar_nowhere"]

        async def all_have_data() -> bool:
            nonlocal missing
            missing = await watched.without_data(queries)
            return not missing

        missing: list[str] = []
        try:
            await until(all_have_data, pause_s=0.5)
        except TimeoutError:
            pytest.fail("no data for\n" + "\n".join(missing) + "\n" + bench.logs())
        with suppress(TimeoutError):  # server and node are not scraped in the same moment
            await until(lambda: _is_of_the_run(watched), pause_s=0.2)
        await _values_are_those_of_the_run(watched)
        go.touch()
        await client.cancel_task("w")


async def _has(prometheus: Prometheus, expression: str, wanted: float) -> bool:
    return await prometheus.value(expression) == wanted


async def _is_of_the_run(watched: Prometheus) -> bool:
    try:
        await _values_are_those_of_the_run(watched)
    except AssertionError:
        return False
    return True


async def _values_are_those_of_the_run(watched: Prometheus) -> None:
    assert (await watched.value("max(polar_queue_oldest_seconds)") or 0) > 0
    assert await watched.value("sum(polar_sessions_ended_total{stage='COMPLETED'})") == 10
    failed = await watched.query("polar_sessions_ended_total{failed_by!=''}")
    assert [(one["labels"]["where"], one["value"]) for one in failed] == [("harness", 2)]
    assert await watched.value("max(polar_policy_updates_total)") == 2
    assert (await watched.value("polar_gateway_token_age_updates_sum") or 0) > 0
    assert {one["labels"]["reason"] for one in await watched.query("polar_gateway_breaks_total")}
    overflow = "polar_gateway_call_problems_total{code='context_length_exceeded'}"
    assert await watched.value(overflow) == 2
    at_server = await watched.value("sum(polar_engine_sampled_tokens_total)")
    assert at_server == await watched.value("sum(polar_gateway_sampled_tokens_total)")
    alerts = (await watched.ask("rules"))["groups"][0]["rules"]
    assert len(alerts) == 6 and {alert["health"] for alert in alerts} <= {"ok", "unknown"}


@pytest.mark.check
async def test_prometheus_without_the_token_gets_nothing(bench: ServiceBench) -> None:
    await bench.start_server()
    wrong = bench.folder / "wrong-token"
    wrong.write_text("wrong")
    targets = {"polar-server": [bench.address.removeprefix("http://")], "polar-gateway": []}
    prometheus = Prometheus(bench.folder / "prometheus", wrong, targets)
    try:
        await prometheus.until_it_scrapes(0)

        async def refused() -> bool:  # on a busy machine a scrape may run out of time instead
            (target,) = (await prometheus.ask("targets"))["activeTargets"]
            return "401" in target["lastError"]

        await until(refused, pause_s=0.2)
        assert await prometheus.query("polar_queue_sessions") == []
    finally:
        prometheus.close()
