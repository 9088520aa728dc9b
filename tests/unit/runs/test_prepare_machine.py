"""Before the first session: what is not permitted is refused, and what sessions share is got once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from polar.config import PermitConfig
from polar.errors import ConfigError, RuntimeFailure
from polar.runs.running import prepare_machine
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.runtimes.options import Capabilities
from polar.types import TaskRequest


class MountingOptions(LocalOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(networks=("open",), mounts=True)


class MountingRuntime(LocalRuntime):
    Options: type[LocalOptions] = MountingOptions  # pyright: ignore[reportIncompatibleVariableOverride]
    provided: ClassVar[int] = 0
    problem: ClassVar[str] = ""

    async def provide(self, permits: PermitConfig, tell: Callable[[str], None]) -> None:
        await super().provide(permits, tell)
        MountingRuntime.provided += 1
        tell("Pulling it")
        if self.problem:
            raise RuntimeFailure(self.problem)


@pytest.fixture(autouse=True)
def nothing_provided() -> None:
    MountingRuntime.provided, MountingRuntime.problem = 0, ""


def a_task(**options: Any) -> TaskRequest:
    runtime = {"name": f"{__name__}:MountingRuntime", "options": options}
    return TaskRequest.model_validate({"instruction": "x", "runtime": runtime, "harness": "shell"} | _SHELL)


_SHELL = {"harness": {"name": "shell", "options": {"command": "true"}}}


async def test_a_task_that_asks_for_more_is_refused_with_the_setting(tmp_path: Path) -> None:
    task = a_task(mounts=[{"source": str(tmp_path), "target": "/data"}])
    with pytest.raises(ConfigError, match=r"is in no folder of the node's setting permits\.mounts"):
        await prepare_machine([task], PermitConfig(), print)
    await prepare_machine([task], PermitConfig(mounts=(tmp_path,)), print)


async def test_tasks_with_the_same_runtime_are_provided_for_once() -> None:
    told: list[str] = []
    await prepare_machine([a_task(), a_task(), a_task(tail_bytes=10)], PermitConfig(), told.append)
    assert MountingRuntime.provided == 2
    assert told.count("Pulling it") == 2


async def test_what_cannot_be_had_fails_only_the_sessions_that_need_it(caplog: pytest.LogCaptureFixture) -> None:
    MountingRuntime.problem = "no such image"
    with caplog.at_level(logging.WARNING, "polar.runs"):
        await prepare_machine([a_task()], PermitConfig(), print)
    assert "no such image" in caplog.text
