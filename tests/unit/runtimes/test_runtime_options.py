"""A runtime declares what it can enforce; a spec that asks for more is refused before anything runs."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import ValidationError

from polar.registry import plugin_problems
from polar.runtimes.local.runtime import LocalOptions
from polar.runtimes.options import Capabilities, Limits, RuntimeOptions
from polar.types import Spec, TaskRequest


class ContainedOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "none"), limits=("pids",), reasons={"disk_bytes": "there is no quota"}
    )


def test_the_default_network_is_the_strictest_that_reaches_the_model() -> None:
    assert ContainedOptions().network_mode == "gateway_only"
    assert ContainedOptions(network="none").network_mode == "none"
    assert LocalOptions().network_mode == "open"


def test_a_network_that_cannot_be_held_is_refused_with_those_that_can() -> None:
    with pytest.raises(ValidationError, match=r"cannot enforce network 'open', only gateway_only or none"):
        ContainedOptions(network="open")
    with pytest.raises(ValidationError, match="the local runtime contains nothing; bubblewrap"):
        LocalOptions(network="gateway_only")


def test_a_limit_that_cannot_be_held_is_refused_with_the_reason() -> None:
    assert ContainedOptions(limits=Limits(pids=10)).limits.asked == ("pids",)
    with pytest.raises(ValidationError, match=r"cannot enforce the limit cpus, only pids"):
        ContainedOptions(limits=Limits(cpus=0.5))
    with pytest.raises(ValidationError, match="cannot enforce the limit disk_bytes, only pids: there is no quota"):
        ContainedOptions(limits=Limits(disk_bytes=2**20))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValidationError, match="nor any other limit: the local runtime contains nothing"):
        LocalOptions(limits=Limits(pids=10))


def test_sizes_may_be_written_as_people_do() -> None:
    assert Limits.model_validate({"memory_bytes": "512MiB", "disk_bytes": "1GB"}).memory_bytes == 512 * 2**20
    with pytest.raises(ValidationError):
        Limits.model_validate({"memory_bytes": "much"})


def test_a_task_that_asks_local_for_containment_is_refused_when_submitted() -> None:
    task = TaskRequest(instruction="x", runtime=Spec(name="local", options={"network": "gateway_only"}))
    (problem,) = plugin_problems(task)
    assert problem.startswith("runtime.options: ") and "only open" in problem


def test_a_limit_without_end_is_none() -> None:
    with pytest.raises(ValidationError, match="finite"):
        Limits.model_validate({"cpus": float("inf")})
