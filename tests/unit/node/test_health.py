"""Which part of a node a failure may come from, and what its probe finds."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polar.config import NodeConfig
from polar.errors import EngineBusy, EngineError, PolarError, RuntimeFailure, SessionError, boundary, failure_of
from polar.gateway.calls.policy_gate import PolicyGate
from polar.node.health import NodeHealth, Suspicion, suspicion_of
from polar.node.probes import check_descriptors, check_disk, check_engine, descriptors_are_short
from polar.types import Failure, NodePart, TaskRequest
from waiting import until

TASK = TaskRequest.model_validate({"task_id": "t", "instruction": "x", "runtime": {"name": "docker"}})


def failed(where: str, error: Exception, *, agent: bool = False) -> Failure:
    return failure_of(where, error, agent=agent)


def chained() -> Exception:
    """As a boundary names it, with the cause two steps down."""
    try:
        try:
            try:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            except OSError as error:
                raise RuntimeFailure("no process could be started") from error
        except RuntimeFailure as error:
            raise PolarError("the harness did not start") from error
    except PolarError as error:
        return error


@pytest.mark.parametrize(
    ("failure", "part"),
    [
        (failed("engine", EngineError("connection refused")), "engine"),
        (failed("engine", EngineError("no connection: [Errno 24] Too many open files")), "descriptors"),
        (failed("journal", PolarError("the journal x: database or disk is full")), "disk"),
        (failed("store", PolarError("any")), "disk"),
        (failed("runtime", RuntimeFailure("cannot reach the Docker Engine")), "runtime"),
        (failed("runtime", OSError(errno.ENOSPC, "No space left on device")), "disk"),
        (failed("files", OSError(errno.EDQUOT, "Disk quota exceeded")), "disk"),
        (failed("harness", chained()), "descriptors"),
        (failed("evaluator", OSError(errno.ENFILE, "Too many open files in system")), "descriptors"),
        # The session's own doing, or its words.
        (failed("harness", PolarError("cp: No space left on device")), None),
        (failed("evaluator", PolarError("Too many open files")), None),
        (failed("engine", EngineError("x"), agent=True), None),
        (Failure(where="engine", type="ContextOverflow", message="too long"), None),
        (Failure(where="builder", type="NotExact", message="x"), None),
    ],
)
def test_a_failure_names_the_part_it_may_come_from(failure: Failure, part: NodePart | None) -> None:
    found = suspicion_of(failure, TASK)
    assert (found.part if found else None) == part
    assert found is None or found.subject == ("docker" if part == "runtime" else "")


def test_a_shortage_is_named_through_a_boundary() -> None:
    with pytest.raises(SessionError) as raised, boundary("files"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.failure.type == "DiskFull"


class Part:
    """One that a test breaks and mends."""

    def __init__(self) -> None:
        self.broken = ""
        self.probes = 0

    async def check(self, _: str) -> None:
        self.probes += 1
        await asyncio.sleep(0)
        if self.broken:
            raise PolarError(self.broken)

    def health(self) -> NodeHealth:
        checks = dict.fromkeys(("engine", "disk", "descriptors", "runtime"), self.check)
        return NodeHealth(checks, NodeConfig(probe_pause_s=0.01))  # type: ignore[arg-type]


ENGINE = Suspicion("engine")


async def test_a_suspicion_that_a_probe_clears_changes_nothing() -> None:
    part = Part()
    health = part.health()
    assert await health.examine(ENGINE) and health.sick is None and health.was_well_since(0.0)


async def test_many_failures_at_once_are_one_outage_and_it_ends_by_itself() -> None:
    part, fell_sick = Part(), 0
    health = part.health()

    def note() -> None:
        nonlocal fell_sick
        fell_sick += 1

    health.watch(note)
    part.broken = "it is gone"
    began = asyncio.get_running_loop().time()
    assert await asyncio.gather(*(health.examine(ENGINE) for _ in range(20))) == [False] * 20
    assert fell_sick == 1 and health.sick and (health.sick.part, health.sick.why) == ("engine", "it is gone")
    await until(lambda: part.probes > 3)
    part.broken = ""
    await health.until_well()
    assert health.sick is None and not health.was_well_since(began), "an attempt from before does not count"
    await health.close()


async def test_a_part_that_never_answers_a_probe_is_sick() -> None:
    async def stuck(_: str) -> None:
        await asyncio.Event().wait()

    health = NodeHealth({"engine": stuck}, NodeConfig(probe_s=0.05))  # type: ignore[dict-item]
    assert not await health.examine(ENGINE)
    assert health.sick and "within 0.05 s" in health.sick.why
    await health.close()


def test_a_disk_with_too_little_room_fails_its_check(tmp_path: Path) -> None:
    check_disk(tmp_path, 0)
    with pytest.raises(PolarError, match="MiB are free at"):
        check_disk(tmp_path, 2**62)
    assert list(tmp_path.iterdir()) == []


@contextmanager
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_spare_descriptors_fails_its_check() -> None:
    check_descriptors()
    with few_descriptors(), pytest.raises(OSError, match="Too many open files"):
        check_descriptors()
    check_descriptors()


def test_few_descriptors_left_are_a_shortage() -> None:
    assert not descriptors_are_short()
    with few_descriptors():
        assert descriptors_are_short()


async def test_a_shortage_makes_no_node_sick_but_is_remembered() -> None:
    health = NodeHealth({}, NodeConfig())
    before = time.monotonic()
    assert health.was_well_since(before, "descriptors")
    health.note_shortage("descriptors")
    assert health.sick is None
    assert not health.was_well_since(before, "descriptors") and health.was_well_since(before, "disk")


class Answering:
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def generate(self, _: object):  # type: ignore[no-untyped-def]
        if self.error:
            raise self.error
        return
        yield


async def test_an_engine_that_is_busy_is_well_and_one_that_gives_nothing_is_not() -> None:
    gate = PolicyGate()
    await check_engine(Answering(EngineBusy("later", 1.0)), gate)  # type: ignore[arg-type]
    for engine in (Answering(None), Answering(EngineError("gone"))):
        with pytest.raises(EngineError):
            await check_engine(engine, gate)  # type: ignore[arg-type]
    assert gate.under_way == 0
