"""Health, metrics and traces of real processes, as an operator starts them."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from otlp_collector import OtlpCollector, attributes_of
from polar.cluster.gateway_process import GatewayProcess, status_options
from polar.config import NodeConfig
from ports import port_to_come_back_to
from service_bench import CONFIG, ServiceBench, agent_task
from waiting import hang_limit, until

pytestmark = pytest.mark.check


async def get(url: str, token: str = "") -> tuple[int, Any] | None:
    """None: nothing listens there."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
            return answer.status, await (answer.json() if "json" in answer.content_type else answer.text())
    except aiohttp.ClientConnectorError:
        return None


async def answers(url: str, status: int) -> bool:
    found = await get(url)
    return found is not None and found[0] == status


async def test_a_server_whose_disk_takes_no_more_is_alive_and_not_ready(bench: ServiceBench) -> None:
    """The kernel refuses what it would write to files, as on a full disk."""
    server = await bench.start_server()
    ready = f"{bench.address}/readyz"
    await until(lambda: answers(ready, 200))
    unlimited = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
    await until(lambda: answers(ready, 503))
    found = await get(ready)
    assert found is not None and found[1]["checks"]["database"] != "ok"
    assert await answers(f"{bench.address}/healthz", 200)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, unlimited)
    await until(lambda: answers(ready, 200))


async def test_two_workers_serve_their_metrics_side_by_side(bench: ServiceBench) -> None:
    port = port_to_come_back_to()
    await bench.start_server()
    bench.start_node("--workers", "2", "--metrics-port", str(port))
    token = (bench.folder / "secrets/metrics-token").read_text()
    for each in (port, port + 1):
        await until(lambda each=each: answers(f"http://127.0.0.1:{each}/readyz", 200), pause_s=0.1)
        assert await answers(f"http://127.0.0.1:{each}/metrics", 401)
        found = await get(f"http://127.0.0.1:{each}/metrics", token)
        assert found is not None and found[0] == 200 and "polar_gateway_sessions" in found[1]
    found = await get(f"{bench.address}/metrics", token)
    assert found is not None and 'polar_nodes{state="well"} 2.0' in found[1]


async def test_a_node_that_has_lost_its_server_says_so(bench: ServiceBench) -> None:
    port = port_to_come_back_to()
    server = await bench.start_server()
    bench.start_node("--metrics-port", str(port))
    ready = f"http://127.0.0.1:{port}/readyz"
    await until(lambda: answers(ready, 200), pause_s=0.1)
    server.kill()
    await until(lambda: answers(ready, 503), pause_s=0.1)
    found = await get(ready)
    assert found is not None
    assert "is away" in found[1]["checks"].pop("server") and set(found[1]["checks"].values()) == {"ok"}
    await bench.start_server()
    await until(lambda: answers(ready, 200), pause_s=0.1)


@pytest.mark.parametrize("by", ["environment", "config"])
async def test_a_node_with_a_collector_traces_its_sessions(bench: ServiceBench, by: str) -> None:
    async with OtlpCollector() as collector:
        if by == "environment":
            bench.env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "mine"}
        else:
            settings = f'{CONFIG}\n[node]\notlp_endpoint = "{collector.url}"\n'
            (bench.folder / "polar.toml").write_text(settings)
        await bench.start_server()
        bench.start_node()
        async with bench.client() as client:
            await client.submit(agent_task(task_id="t"))
            async with hang_limit():
                (result,) = [entry.result async for entry in client.results(task_ids=["t"])]
        (root,) = await until(lambda: collector.named("session"))
        assert attributes_of(root)["polar.session_id"] == result.session_id
        wanted = "mine" if by == "environment" else "polar-gateway"
        assert {each["service.name"] for each in collector.resources} == {wanted}


async def test_a_node_that_stops_sends_its_last_spans(bench: ServiceBench) -> None:
    async with OtlpCollector() as collector:
        bench.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        await bench.start_server()
        node = bench.start_node()
        here = bench.folder / "here"
        async with bench.client() as client:
            await client.submit(agent_task(f"touch {here}; sleep 1000", task_id="t"))
            await until(here.exists)
        node.terminate()
        (root,) = await until(lambda: collector.named("session"))
        assert attributes_of(root)["polar.stage"] == "CANCELLED"
        await until(lambda: node.poll() is not None)


def test_workers_take_ports_side_by_side() -> None:
    config = NodeConfig(metrics_port=9000, metrics_host="::1")
    assert status_options(config, 3) == ("--metrics-host", "::1", "--metrics-port", "9002")
    assert status_options(NodeConfig(metrics_port=0), 2) == ("--metrics-host", "127.0.0.1", "--metrics-port", "0")
    assert status_options(NodeConfig(), 1) == ()
    worker = GatewayProcess("gateway 1", "http://x", Path("runs"), None, status=("--metrics-port", "9000"))
    arguments = worker.arguments()
    assert arguments[arguments.index("--metrics-port") + 1] == "9000"


async def test_what_does_not_trace_imports_no_opentelemetry() -> None:
    parts = (
        "polar.node, polar.server.serve, polar.session.pipeline, polar.gateway.slots, polar.cli.service.tracing"
    )
    # FastAPI itself imports the API of OpenTelemetry where that is installed; the SDK and exporters are ours.
    heavy = "('opentelemetry.sdk', 'opentelemetry.exporter', 'polar.tracing')"
    code = f"import sys, {parts}; print([m for m in sys.modules if m.startswith({heavy})])"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}
    )
    said, _ = await process.communicate()
    assert said.decode().strip() == "[]"
