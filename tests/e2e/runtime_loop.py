"""A harness in a runtime: the tool loop of `harness_loop`, with proof of where its tool really ran."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from exactly_once import assert_exactly_once
from harness_loop import ANSWER, MARK, Loop, Outcome, shell_call

from polar import registry
from polar.runtimes.base import Runtime
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Keep, Spec
from skips import skip_without_runtime

LOOK = f"echo hello > answer.txt && pwd > where.txt && readlink /proc/self/ns/net > network.txt && echo {MARK}"
"""The model's tool call: does the task, and leaves word of where it was done."""
CONTAINED = [pytest.param(name, marks=pytest.mark.check) for name in ("bubblewrap", "docker", "apptainer")]
"""Runtimes that have to be installed first."""
OPTIONS: dict[str, dict[str, Any]] = {"local": {}, "bubblewrap": {}, "docker": {}, "apptainer": {}}


async def need(name: str) -> Spec:
    """The runtime's spec; a test without it is skipped, and says what is missing."""
    runtime: type[Runtime] = registry.find("runtime", name)
    skip_without_runtime(name, await runtime.lacking())
    return Spec(name=name, options=OPTIONS[name])


async def loop_in(spec: Spec, harness: str, renderer: SmolLM2Renderer, folder: Path, **options: Any) -> Outcome:
    def say(prompt: str) -> str:
        return ANSWER if MARK in prompt else shell_call(harness, LOOK)

    keep = Keep(artifacts=("answer.txt", "where.txt", "network.txt"), patch=True)
    loop = Loop(renderer, folder, script=say, runtime=spec, keep=keep)
    return await loop.run(harness, **options)


def assert_done_inside(spec: Spec, outcome: Outcome) -> None:
    result, files = outcome.result, outcome.files
    assert (result.exit_code, result.failure, result.stage.value) == (0, None, "COMPLETED"), result
    assert result.score is not None and result.score.reward == 1.0, "the evaluator saw the file in the runtime"
    agent = [call for call in outcome.calls if call.kind == "agent"]
    assert [call.finish_reason for call in agent] == ["tool_calls", "stop"]
    assert_exactly_once(outcome.calls, outcome.trajectory)
    assert (files.artifacts / "answer.txt").read_text() == "hello\n"
    assert "+hello" in files.patch.read_text(), "the patch holds the new file"
    assert not files.place.exists(), "nothing of the runtime is left"
    where = (files.artifacts / "where.txt").read_text().strip()
    network = (files.artifacts / "network.txt").read_text().strip()
    contained = spec.name != "local"
    assert (where == "/work") is contained
    assert (network != os.readlink("/proc/self/ns/net")) is contained, "gateway_only is the default"
