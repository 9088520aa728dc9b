"""The exit codes that docs/quickstart.md promises for what serves: a stop is how it ends, not an interruption."""

from __future__ import annotations

import signal

import pytest

from service_bench import ServiceBench, stopped
from waiting import until

pytestmark = pytest.mark.check

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
async def test_server_and_node_end_with_0(bench: ServiceBench, number: signal.Signals) -> None:
    await bench.start_server()
    node = bench.start_node()
    await until(lambda: bench.has_registered(node))
    assert await stopped(node, number) == 0, bench.logs()
    assert await stopped(bench.processes[0], number) == 0, bench.logs()


@pytest.mark.parametrize("number", SIGNALS)
async def test_the_whole_service_ends_with_0(bench: ServiceBench, number: signal.Signals) -> None:
    service = bench.start("up")
    await until(lambda: "Ctrl-C stops everything" in bench.logs())
    assert await stopped(service, number) == 0, bench.logs()
