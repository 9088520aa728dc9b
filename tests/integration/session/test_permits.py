"""A session whose task asks for more than the operator permits fails at once, and the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from workshop import AGENT, Workshop, shell_task

from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.runtimes.options import Capabilities
from polar.types import Stage


class ReadingOptions(LocalOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(networks=("open",), mounts=True)


class ReadingRuntime(LocalRuntime):
    Options: type[LocalOptions] = ReadingOptions  # pyright: ignore[reportIncompatibleVariableOverride]


def task_with(task_id: str, **options: Any) -> Any:
    runtime = {"name": f"{__name__}:ReadingRuntime", "options": options}
    return shell_task(
        f"{' '.join(AGENT)}", task_id=task_id, runtime=runtime, evaluator={"name": "session_completion"}
    )


async def test_it_is_not_tried_again_and_names_the_setting(workshop: Workshop, tmp_path: Path) -> None:
    workshop.node["max_failures"] = 3
    refused = task_with("refused", mounts=[{"source": str(tmp_path), "target": "/data"}])
    await workshop.run(["Done."], [refused, task_with("plain")])
    result = workshop.results["refused-0"]
    assert result.stage is Stage.FAILED and result.attempts == ()
    assert result.failure is not None and not result.failure.agent
    assert (result.failure.where, result.failure.type) == ("runtime", "NotPermitted")
    assert "permits.mounts" in result.failure.message
    assert workshop.results["plain-0"].stage is Stage.COMPLETED
    assert workshop.leftovers() == []


async def test_the_permits_of_the_config_reach_the_runtime(workshop: Workshop, tmp_path: Path) -> None:
    workshop.permits = {"mounts": [str(tmp_path)]}
    task = task_with("permitted", mounts=[{"source": str(tmp_path), "target": "/data"}])
    await workshop.run(["Done."], [task])
    assert workshop.only.stage is Stage.COMPLETED
