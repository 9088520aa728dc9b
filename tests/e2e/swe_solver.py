"""A scripted model works on the tasks of examples/swe through a real harness, from the gateway to the reward."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness_loop import CONTEXT_TOKENS, shell_call

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.data.tasks import read_task_set
from polar.engines.base import EngineInfo
from polar.node import open_node
from polar.store.paths import RunPaths
from polar.testing import ScriptedEngine
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import SessionResult, Spec, TaskRequest, TokenIds, Trajectory

EXAMPLES = Path(__file__).parents[2] / "examples" / "swe"
DONE = "all-done-with-the-tool"
"""The tool prints it and the model's command does not: a prompt that holds it has seen the tool run."""

Row = Mapping[str, Any]
Command = Callable[[Row], str]
"""What the model runs in its shell for a row."""


def build_set(folder: Path) -> dict[str, Row]:
    """Builds the set into the folder and returns its rows by id."""
    subprocess.run([sys.executable, EXAMPLES / "build.py", folder], check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return {row["instance_id"]: row for row in rows}


def one_of_each_repository(rows: Mapping[str, Row]) -> list[Row]:
    return list({row["repo"]: row for row in rows.values()}.values())


def write_tasks(
    folder: Path, instances: list[str], runtime: Spec, patch_file: str | None = None, **defaults: Any
) -> Path:
    """A task file beside the built set."""
    evaluator = {} if patch_file is None else {"patch_file": patch_file}
    values = {"harness": {"name": "pi"}, "runtime": runtime.model_dump(), **defaults}
    lines = [
        "[swe]",
        'rows = "rows.jsonl"',
        'repositories = "repositories"',
        f"instances = {json.dumps(instances)}",
        "timeout_s = 300",
        f"evaluator = {inline(evaluator)}",
        "[defaults]",
        *(f"{name} = {inline(value)}" for name, value in values.items()),
    ]
    path = folder / "tasks.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def inline(value: Any) -> str:
    """As TOML in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {inline(each)}" for name, each in value.items()) + " }"
    return json.dumps(value)


def apply(patch: str) -> str:
    return f"git apply - <<'END_OF_FIX'\n{patch}END_OF_FIX"


@dataclass
class Solver:
    renderer: SmolLM2Renderer
    built: Path
    rows: Mapping[str, Row]
    results: dict[str, SessionResult] = field(default_factory=dict[str, SessionResult])

    async def solve(
        self, commands: Mapping[str, Command], runtime: Spec, **defaults: Any
    ) -> dict[str, SessionResult]:
        """Lets the model run a command for each instance id; returns the results by instance id."""
        read = read_task_set(write_tasks(self.built, list(commands), runtime, **defaults))
        assert read.skipped == ()
        assert {task.task_id for task in read.tasks} == set(commands)
        return await self.run(read.tasks, commands)

    async def run(self, tasks: list[TaskRequest], commands: Mapping[str, Command]) -> dict[str, SessionResult]:
        def reply(_: int, prompt_ids: TokenIds) -> str:
            prompt = self.renderer.decode(prompt_ids)
            if DONE in prompt:
                return "The issue is resolved."
            (row,) = (self.rows[name] for name in commands if self._title(name) in prompt)
            return shell_call("pi", f"{commands[row['instance_id']](row)}\necho all-done-'with-the-tool'")

        info = EngineInfo("scripted", "script", CONTEXT_TOKENS, "raw", parallel=8, constrains=True)
        vocabulary = self.renderer._vocabulary  # pyright: ignore[reportPrivateUsage]
        engine = ScriptedEngine(vocabulary, reply, info=info)
        paths = RunPaths.create(Path("polar-runs"))  # relative, as `polar run` has it
        config = Config.model_validate({"permits": {"build": True}})  # Dockerfiles of Harbor folders
        async with open_node(config, paths, engine=engine, renderer=self.renderer) as node:
            await node.serve(TaskFileSource(tasks, self._keep))
        return self.results

    def _title(self, name: str) -> str:
        return str(self.rows[name]["problem_statement"]).partition("\n")[0]

    async def _keep(self, result: SessionResult, trajectory: Trajectory | None) -> None:
        self.results[result.task_id] = result


def verdicts(results: Mapping[str, SessionResult]) -> dict[str, tuple[float | None, str]]:
    """Reward by instance, and what speaks against it; every session has a score and no failure."""
    found: dict[str, tuple[float | None, str]] = {}
    for name, result in results.items():
        assert result.failure is None and result.score is not None, (name, result.failure)
        found[name] = (result.score.reward, "; ".join(result.score.reasons))
    return found
