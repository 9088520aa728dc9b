"""A whole node for tests: real gateway, real journal, real local runtime; only the engine follows a script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.node import Node, open_node
from polar.store.paths import RunPaths
from polar.testing import Script, ScriptedEngine
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import SessionResult, TaskRequest, Trajectory

AGENT = [sys.executable, str(Path(__file__).parent / "tiny_agent.py")]
WRITE = '<tool_call>{"name": "bash", "arguments": {"command": "echo hello > answer.txt"}}</tool_call>'
CHECK = {"name": "test_on_output", "options": {"command": "cat answer.txt", "expect_pattern": "^hello$"}}


def agent_task(**fields: Any) -> TaskRequest:
    harness = {"name": "shell", "options": {"argv": AGENT}}
    return TaskRequest.model_validate(
        {"instruction": "Write hello.", "harness": harness, "evaluator": CHECK, **fields}
    )


def shell_task(command: str, **fields: Any) -> TaskRequest:
    return agent_task(harness={"name": "shell", "options": {"command": command}}, **fields)


class Workshop:
    def __init__(self, renderer: SmolLM2Renderer, folder: Path) -> None:
        self.renderer = renderer
        self.paths = RunPaths.create(folder)
        self.results: dict[str, SessionResult] = {}
        self.trajectories: dict[str, Trajectory | None] = {}
        self.node: dict[str, Any] = {"outage_s": 0, "max_failures": 1}
        """Of the config. A failure of the node is the session's at once, unless a test says otherwise."""
        self.gateway: dict[str, Any] = {}
        """Of the config."""
        self.permits: dict[str, Any] = {}
        """Of the config."""

    async def run(self, script: Script, tasks: Sequence[TaskRequest], during: Any = None, **pools: int) -> Node:
        """Runs the tasks to the end and keeps their results; `during` is started beside them with the node."""
        engine = ScriptedEngine(self.renderer._vocabulary, script)  # pyright: ignore[reportPrivateUsage]
        tables = {"pools": pools, "node": self.node, "gateway": self.gateway, "permits": self.permits}
        config = Config.model_validate(tables)
        async with open_node(config, self.paths, engine=engine, renderer=self.renderer) as node:
            source = TaskFileSource(tasks, self._keep)
            if during is None:
                await node.serve(source)
            else:
                await during(node, source)
        return node

    async def _keep(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self.results[result.session_id] = result
        self.trajectories[result.session_id] = trajectory

    @property
    def only(self) -> SessionResult:
        (result,) = self.results.values()
        return result

    def leftovers(self) -> list[str]:
        """Runtime folders that should be gone."""
        return [str(path) for path in self.paths.root.glob("sessions/*/place")]
