"""What `polar train` finds before it starts anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from polar.cli.service import up
from polar.cli.service.train import ending
from polar.cli.service.train_progress import TrainProgress
from polar.cli.service.train_service import Place, check_reachable, training_engine, training_service
from polar.config import Config
from polar.engines.torch.engine import TorchEngine
from polar.errors import ConfigError
from polar.trainers.grpo.config import TrainConfig
from polar.types import NodeStatus, Spec

URL = {"url": "http://127.0.0.1:1"}
SERVER = "http://127.0.0.1:2"


@pytest.mark.parametrize(
    "engine",
    [
        Spec(name="torch", options={"model": "/a/folder"}),
        Spec(name="pool", options={"replicas": [{"name": "torch", "options": {"model": "/a/folder"}}]}),
    ],
)
def test_a_running_service_needs_an_engine_with_an_address(engine: Spec) -> None:
    with pytest.raises(ConfigError, match=r"with --server the engine is the one .*`url`"):
        check_reachable(engine, SERVER)


def test_an_engine_that_can_be_reached_is_taken() -> None:
    check_reachable(Spec(name="torch", options=URL), SERVER)
    check_reachable(Spec(name="vllm", options=URL), SERVER)
    check_reachable(Spec(name="vllm", options=URL), None)
    check_reachable(Spec(name="torch"), None)


async def test_no_engine_is_started_beside_a_running_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes would not sample from it."""

    def shared(*_: object) -> Any:
        raise AssertionError("started")

    monkeypatch.setattr(TorchEngine, "shared", shared)
    config = Config(engine=Spec(name="torch"))
    async with training_engine(config, "model", SERVER) as used:
        assert used is config


def test_a_run_whose_time_was_up_before_the_first_step_names_no_checkpoint() -> None:
    class State:
        step = 0
        minutes = 0.0

    config = TrainConfig.model_validate({"tasks": {"train": "t.toml"}, "schedule": {"minutes": 0.5}})
    state: Any = State()
    assert "0.5 minutes) was up before the first one; give more --minutes" in ending(state, config)


async def test_the_node_of_a_killed_service_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Server:
        """Has one node more when it is asked again."""

        def __init__(self, _: str) -> None: ...

        async def __aenter__(self) -> Server:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def nodes(self) -> list[NodeStatus]:
            asked.append(1)
            times = [time.time() - 5, time.time() + 5][: len(asked)]
            return [
                NodeStatus(node_id=str(at), name="n", slots=1, registered=at, last_seen=at, alive=True)
                for at in times
            ]

    @asynccontextmanager
    async def service(_: object) -> AsyncGenerator[str]:
        yield "http://127.0.0.1:3"

    monkeypatch.setattr(up, "service", service)
    monkeypatch.setattr("polar.client.PolarClient", Server)
    monkeypatch.setenv("PYTHONPATH", "")
    place = Place(Config(), None, None, 1, tmp_path)
    async with asyncio.timeout(20), training_service(place, tmp_path, TrainProgress(json=True)):
        assert len(asked) == 2
