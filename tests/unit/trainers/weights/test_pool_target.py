"""Which replicas of a pool take part in an update."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from polar.errors import EngineError
from polar.trainers.weights import pool
from polar.trainers.weights.base import WeightError, WeightOptions
from polar.trainers.weights.pool import PoolTarget

URLS = ["http://a", "http://b"]


class Server:
    """Names a version with its tokens, of which it samples none while it is held."""

    def __init__(self) -> None:
        self.version = ""
        self.answers = True
        self.takes = True
        self.going = asyncio.Event()
        self.going.set()

    async def ping(self) -> None:
        if not self.answers:
            raise EngineError("no connection")

    async def reported_version(self) -> str:
        await self.going.wait()
        return self.version

    async def hold(self) -> None:
        self.going.clear()

    async def load(self, weights: Any) -> None:
        if not self.takes:
            raise WeightError("out of memory")

    async def name_version(self, version: str) -> None:
        self.version = version

    async def release(self) -> None:
        self.going.set()


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PoolTarget, dict[str, Server]]:
    monkeypatch.setattr(pool, "VERSION_S", 0.2)
    (tmp_path / "config.json").write_text("{}")
    target = PoolTarget({"engine": "vllm", "urls": URLS}, tmp_path, WeightOptions())
    servers = {url: Server() for url in URLS}
    cast("Any", target)._targets = servers
    return target, servers


async def test_one_that_broke_an_update_in_flight_is_left_out_of_the_next_when_it_is_stopped(
    replicas: tuple[PoolTarget, dict[str, Server]],
) -> None:
    target, servers = replicas
    await target.hold()
    await target.load({})
    await target.name_version("1")
    await target.release()
    servers["http://b"].takes = False
    await target.hold()
    with pytest.raises(WeightError, match=r"http://b: out of memory"):
        await target.load({})
    servers["http://b"].answers = False  # a person stops it; the other is still held, and samples nothing
    await target.hold()
    assert list(target.present()) == ["http://a"]
    await target.load({})
