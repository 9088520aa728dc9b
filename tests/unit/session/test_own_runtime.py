"""An evaluator's own runtime: retried, limited by its budget and its pool, and gone when the session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from bench import task_of
from pydantic import BaseModel

from polar.errors import RuntimeFailure, SessionError
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.runtimes.base import SessionFolders
from polar.runtimes.options import Capabilities, RuntimeOptions
from polar.session import own_runtime
from polar.session.own_runtime import EvaluatorSetup, EvaluatorSite, is_contained, without_network
from polar.store.paths import SessionPaths
from polar.types import Failure, Spec, Strict, TaskRequest
from waiting import until

CONTAINER = {"name": f"{__name__}:FakeContainer"}
ASKING = {"name": f"{__name__}:Asking"}


class ContainerOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "none"), contains=("files", "processes")
    )


class FakeContainer:
    """Notes what becomes of it."""

    Options: type[BaseModel] = ContainerOptions
    made: ClassVar[list[FakeContainer]] = []
    failures: ClassVar[list[BaseException]] = []
    """What the next starts raise."""
    let_start: ClassVar[asyncio.Event]

    def __init__(self, options: ContainerOptions) -> None:
        self.network = options.network
        self.folders: SessionFolders | None = None
        self.written: dict[str, bytes] = {}
        self.is_stopped = False
        self.made.append(self)

    async def start(self, folders: SessionFolders) -> None:
        self.folders = folders
        await self.let_start.wait()
        if self.failures:
            raise self.failures.pop(0)

    async def put(self, path: str, content: bytes) -> None:
        self.written[path] = content

    async def stop(self) -> None:
        self.is_stopped = True


class Asking:
    """Asks for a runtime of its own."""

    Options: type[BaseModel] = Strict

    def __init__(self, options: Strict) -> None:
        pass

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest:
        return RuntimeRequest()

    def evaluate(self, evidence: Evidence) -> float:
        return 1.0


class AskingForNonsense(Asking):
    def wants_runtime(self, task: TaskRequest) -> Any:
        return "docker"


@pytest.fixture(autouse=True)
def containers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeContainer]]:
    monkeypatch.setattr(own_runtime, "PAUSE_S", 0.0)
    FakeContainer.made, FakeContainer.failures, FakeContainer.let_start = [], [], asyncio.Event()
    FakeContainer.let_start.set()
    yield FakeContainer.made
    assert all(container.is_stopped for container in FakeContainer.made)


def setup_of(folder: Path, pool: asyncio.Semaphore | None = None, **fields: Any) -> EvaluatorSetup:
    task = task_of(**{"runtime": CONTAINER, "evaluator": ASKING, **fields})
    return EvaluatorSetup(EvaluatorSite("t-0", task, SessionPaths(folder)), pool or asyncio.Semaphore(1))


async def failure_from(setup: EvaluatorSetup) -> Failure:
    with pytest.raises(SessionError) as raised:
        await setup.ready()
    await setup.end()
    return raised.value.failure


async def test_it_starts_in_the_background_as_the_session_did(
    tmp_path: Path, containers: list[FakeContainer]
) -> None:
    setup = setup_of(tmp_path, files={"a.txt": "one"})
    setup.begin()
    await until(lambda: bool(containers and containers[0].written))
    prepared = await setup.ready()
    (container,) = containers
    assert prepared.own_runtime is container and container.written == {"a.txt": b"one"}
    assert container.network == "none" and container.folders is not None
    assert (
        container.folders.session_id == "t-0.evaluator" and container.folders.root == tmp_path / "evaluator-place"
    )
    assert (await setup.ready()).evaluator is prepared.evaluator, "made once"
    await setup.end()


async def test_an_evaluator_that_asks_for_none_gets_none(tmp_path: Path, containers: list[FakeContainer]) -> None:
    setup = setup_of(tmp_path, evaluator="session_completion")
    assert (await setup.ready()).own_runtime is None and not containers
    await setup.end()


async def test_a_start_that_fails_is_tried_again_in_a_new_runtime(
    tmp_path: Path, containers: list[FakeContainer]
) -> None:
    FakeContainer.failures = [RuntimeFailure("no answer"), OSError("no answer")]
    setup = setup_of(tmp_path)
    assert (await setup.ready()).own_runtime is containers[2]
    assert [container.is_stopped for container in containers] == [True, True, False]
    await setup.end()


async def test_a_runtime_that_never_starts_is_a_failure_of_infrastructure(tmp_path: Path) -> None:
    FakeContainer.failures = [RuntimeFailure(f"no answer {number}") for number in range(3)]
    failure = await failure_from(setup_of(tmp_path))
    assert (failure.where, failure.type, failure.agent) == ("evaluator", "RuntimeFailure", False)
    assert failure.message == "the evaluator's own runtime could not be started, tried 3 times: no answer 2"


async def test_a_runtime_that_exits_does_not_end_the_node(tmp_path: Path) -> None:
    FakeContainer.failures = [SystemExit(4)] * 3
    assert (await failure_from(setup_of(tmp_path))).where == "evaluator"


async def test_a_missing_workspace_is_not_tried_again(tmp_path: Path, containers: list[FakeContainer]) -> None:
    failure = await failure_from(setup_of(tmp_path, workspace={"folder": str(tmp_path / "none")}))
    assert failure.type == "WorkspaceError" and "not on this node" in failure.message and not containers


async def test_it_has_a_budget_of_its_own(tmp_path: Path) -> None:
    FakeContainer.let_start.clear()
    failure = await failure_from(setup_of(tmp_path, budgets={"evaluator_init_s": 0.01}))
    assert failure.type == "TimedOut" and "budgets.evaluator_init_s" in failure.message


async def test_wants_runtime_must_return_a_request(tmp_path: Path) -> None:
    failure = await failure_from(setup_of(tmp_path, evaluator=f"{__name__}:AskingForNonsense"))
    assert failure.where == "evaluator" and "wants_runtime() returned 'docker'" in failure.message


async def test_the_pool_limits_how_many_start_at_once(tmp_path: Path, containers: list[FakeContainer]) -> None:
    pool = asyncio.Semaphore(1)
    FakeContainer.let_start.clear()
    first, second = setup_of(tmp_path / "1", pool), setup_of(tmp_path / "2", pool)
    first.begin()
    await until(lambda: bool(containers and containers[0].folders))
    second.begin()
    FakeContainer.let_start.set()
    await first.ready()
    await second.ready()
    assert [str(container.folders.root) for container in containers if container.folders] == [
        str(tmp_path / "1/evaluator-place"),
        str(tmp_path / "2/evaluator-place"),
    ]
    await first.end()
    await second.end()


async def test_a_start_under_way_is_broken_off(tmp_path: Path, containers: list[FakeContainer]) -> None:
    pool = asyncio.Semaphore(1)
    FakeContainer.let_start.clear()
    setup = setup_of(tmp_path, pool)
    setup.begin()
    await until(lambda: bool(containers and containers[0].folders))
    await setup.end()
    assert containers[0].is_stopped and not pool.locked()


async def test_one_that_has_not_begun_ends_too(tmp_path: Path) -> None:
    await setup_of(tmp_path).end()


def test_network_is_taken_away_where_the_runtime_can() -> None:
    assert without_network(Spec(name="local")) == Spec(name="local")
    assert without_network(Spec(name="bubblewrap")).options == {"network": "none"}
    chosen = Spec(name="bubblewrap", options={"network": "open"})
    assert without_network(chosen) == chosen


def test_an_evaluators_runtime_intercepts_nothing() -> None:
    intercepting = Spec(name="bubblewrap", options={"intercept": True, "workspace": "/w"})
    assert without_network(intercepting).options == {"workspace": "/w", "network": "none"}


@pytest.mark.parametrize(
    ("runtime", "contained"), [("local", False), ("bubblewrap", True), ("docker", True), ("no-such", False)]
)
def test_only_a_contained_agent_works_beside_it(runtime: str, contained: bool) -> None:
    options = {"image": "x"} if runtime == "docker" else {}
    assert is_contained(Spec(name=runtime, options=options)) == contained
