"""Sessions in runtimes that were started ahead: they work as any other, and nothing is left of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from workshop import AGENT, Workshop, shell_task

from polar.data.source import TaskFileSource
from polar.node import Node
from polar.runtimes.base import SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.runtimes.options import Capabilities
from polar.types import Lease, SessionResult, Stage, TaskRequest, Trajectory
from waiting import hang_limit, until

STARTED: list[str] = []
ENDED: list[str] = []
WAITING: list[str] = []
"""Warm ones that have been started."""


class ClosedOptions(LocalOptions):
    """As of a runtime that contains its session."""

    capabilities: ClassVar[Capabilities] = Capabilities(networks=("open",), contains=("files", "processes"))


class ClosedRuntime(LocalRuntime):
    Options: type[LocalOptions] = ClosedOptions  # pyright: ignore[reportIncompatibleVariableOverride]

    async def start(self, folders: SessionFolders) -> None:
        STARTED.append(folders.session_id)
        await super().start(folders)
        if folders.session_id.startswith("warm-"):
            WAITING.append(folders.session_id)

    async def _release(self, folders: SessionFolders) -> None:
        ENDED.append(folders.session_id)
        await super()._release(folders)


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    STARTED.clear()
    ENDED.clear()
    WAITING.clear()
    yield


def seven_sessions(command: str) -> list[TaskRequest]:
    task = shell_task(
        f"{command}; {' '.join(AGENT)} >agent.log",
        task_id="t",
        num_samples=7,
        runtime=f"{__name__}:ClosedRuntime",
        evaluator="session_completion",
        files={"given.txt": "given"},
    )
    return [task]


class Bursts:
    """One session; the others when a warm runtime waits."""

    def __init__(self, source: TaskFileSource) -> None:
        self._source = source
        self._began = False

    async def lease(self, room: int) -> list[Lease]:
        if self._began:
            await until(lambda: bool(WAITING))
        self._began, room = True, room if self._began else 1
        return await self._source.lease(room)

    async def report(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        await self._source.report(result, trajectory)


async def in_bursts(node: Node, source: TaskFileSource) -> None:
    async with hang_limit():
        await node.serve(Bursts(source))


async def test_sessions_take_them_and_see_themselves(workshop: Workshop) -> None:
    tasks = seven_sessions("cat given.txt; echo; echo $POLAR_SESSION; ls -A")
    await workshop.run(["Done."], tasks, in_bursts, warm=2, init=1, ready=1, running=1)
    assert {result.stage for result in workshop.results.values()} == {Stage.COMPLETED}
    own = [name for name in STARTED if not name.startswith("warm-")]
    assert 1 <= len(own) < 7, "at least one session took a warm one"
    for session_id in workshop.results:
        shown = (workshop.paths.session(session_id).logs / "harness.stdout").read_text()
        assert shown == f"given\n{session_id}\ngiven.txt\n"


async def test_each_is_ended_and_its_folder_removed(workshop: Workshop) -> None:
    await workshop.run(["Done."], seven_sessions("true"), in_bursts, warm=3, init=2, ready=2, running=2)
    assert any(name.startswith("warm-") for name in STARTED)
    assert sorted(ENDED) == sorted(STARTED)
    assert workshop.leftovers() == []
    assert not Path(workshop.paths.warm).exists()


async def test_under_a_steady_load_hardly_any_is_started(workshop: Workshop) -> None:
    """Its source always has sessions, and asking it takes a moment."""
    await workshop.run(["Done."], seven_sessions("true"), warm=3, init=2, ready=2, running=2)
    own = [name for name in STARTED if not name.startswith("warm-")]
    assert len(own) >= 5
