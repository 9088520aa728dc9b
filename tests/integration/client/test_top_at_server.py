"""`polar top` before a real rollout server with played nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fake_node import FakeNode, Service
from polar.cli.app import app
from polar.cli.top.app import TopApp
from polar.client import PolarClient, Retry, SyncPolarClient
from polar.types import Stage
from waiting import until


@pytest.fixture
def busy(service: Service, node: FakeNode) -> Service:
    """A session with its result, one that runs, one that waits; its node is sick."""
    with SyncPolarClient(service.url) as client:
        client.submit({"task_id": "sum", "instruction": "x", "num_samples": 3})
        client.set_policy_version("step-3")
    node.lease(2)
    node.finish("sum-0")
    node.beat("sum-1", Stage.RUNNING)
    node.fall_sick("engine", "[bold]refused[/]")
    return service


def test_one_snapshot_has_it_all(busy: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["top", "--once", "--server", busy.url])
    assert result.exit_code == 0, result.output
    for text in ("policy step-3", "queued 1", "running 1", "completed 1", "sum-1", "[bold]refused[/]"):
        assert text in result.stdout


def text_of(top: TopApp) -> str:
    return "\n".join(strip.text for strip in top.screen._compositor.render_strips())  # type: ignore[attr-defined]


async def shows(top: TopApp, text: str) -> None:
    await until(lambda: text in text_of(top))


async def in_thread(work: Callable[[], Any]) -> None:
    """The service waits for its own thread, and must not hold up the screen meanwhile."""
    await asyncio.to_thread(work)


async def test_it_steers_the_service_and_survives_its_restart(busy: Service, node: FakeNode) -> None:
    top = TopApp(PolarClient(busy.url, retry=Retry(total_s=0)))
    async with top.run_test(size=(80, 24)) as pilot:
        await shows(top, "▶ sessions: 2 open")
        await pilot.press("p", "y")
        await shows(top, ": PAUSED")
        await pilot.press("d", "y")
        async with PolarClient(busy.url) as client:

            async def draining() -> bool:
                return (await client.nodes())[0].draining

            await until(draining)
        await pilot.press("c", "y")
        await shows(top, "cancel requested")
        await in_thread(busy.stop)
        await shows(top, "SERVER AWAY")
        await in_thread(busy.start)
        await shows(top, "SERVER BACK")
        await shows(top, ": PAUSED")
