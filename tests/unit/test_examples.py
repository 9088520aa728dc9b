"""What the documentation shows is run: the example plug-ins, and the Python of docs/quickstart.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.data.tasks import read_tasks
from polar.node import open_node
from polar.store.paths import RunPaths, RunRecord
from polar.testing import ScriptedEngine
from polar.tokens.renderers.smollm2 import WORKED_EXAMPLES, SmolLM2Renderer
from polar.types import SessionResult, Stage, TaskRequest, Trajectory

ROOT = Path(__file__).parent.parent.parent
HARNESS = {"name": "my_harness:AskOnce", "options": {"python": sys.executable}}


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules, and those of examples/, plug-in names can point at."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def run(
    renderer: SmolLM2Renderer, folder: Path, task: TaskRequest, reply: str
) -> tuple[SessionResult, Trajectory]:
    """One session through a whole node, kept in `folder`/polar-runs as `polar run` does."""
    kept: list[tuple[SessionResult, Trajectory | None]] = []

    async def keep(result: SessionResult, trajectory: Trajectory | None) -> None:
        kept.append((result, trajectory))

    paths = RunPaths.create(folder / "polar-runs")
    paths.write_record(RunRecord(run_id=paths.run_id, config=Config(), versions={}, started=0.0))
    engine = ScriptedEngine(renderer._vocabulary, [reply])  # pyright: ignore[reportPrivateUsage]
    async with open_node(Config(), paths, engine=engine, renderer=renderer) as node:
        await node.serve(TaskFileSource([task], keep))
    ((result, trajectory),) = kept
    assert trajectory is not None
    return result, trajectory


@pytest.mark.parametrize(
    ("reply", "reward", "reasons"),
    [
        ("red and blue", 1.0, ()),
        ("red", 0.5, ("answer.txt lacks 'blue'",)),
        ("", 0.0, ("answer.txt lacks 'red'", "answer.txt lacks 'blue'")),
    ],
)
async def test_the_example_harness_and_evaluator(
    smollm2: SmolLM2Renderer, importable: Path, reply: str, reward: float, reasons: tuple[str, ...]
) -> None:
    evaluator = {"name": "my_evaluator:WordsInFile", "options": {"path": "answer.txt", "words": ["red", "blue"]}}
    task = TaskRequest.model_validate({"instruction": "Colours?", "harness": HARNESS, "evaluator": evaluator})
    result, trajectory = await run(smollm2, importable, task, reply)
    assert (result.stage, result.failure, result.versions["harness"]) == (Stage.COMPLETED, None, "ask_once 1")
    assert result.score and (result.score.reward, result.score.reasons) == (reward, reasons)
    (trace,) = trajectory.traces
    assert trace.reward == reward and trace.trainable_tokens == result.statistics.sampled_tokens


async def test_a_file_that_was_never_written_is_no_reward(smollm2: SmolLM2Renderer, importable: Path) -> None:
    evaluator = {"name": "my_evaluator:WordsInFile", "options": {"path": "other.txt", "words": ["red"]}}
    task = TaskRequest.model_validate({"instruction": "Colours?", "harness": HARNESS, "evaluator": evaluator})
    result, _ = await run(smollm2, importable, task, "red")
    assert result.score and result.score.reasons == ("there is no other.txt",)


async def test_the_builder_of_the_plug_in_page(smollm2: SmolLM2Renderer, importable: Path) -> None:
    (source,) = [block for block in python_blocks("docs/plug-ins.md") if "class LongestChain" in block]
    (importable / "my_builder.py").write_text(source)
    task = TaskRequest.model_validate(
        {"instruction": "Hello?", "harness": HARNESS, "builder": {"name": "my_builder:LongestChain"}}
    )
    result, trajectory = await run(smollm2, importable, task, "Hello.")
    assert result.failure is None and trajectory.builder == "longest_chain"
    assert result.statistics.trainable_tokens == result.statistics.sampled_tokens > 0


async def test_the_python_of_the_quickstart_runs(
    smollm2: SmolLM2Renderer, importable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = TaskRequest.model_validate({"task_id": "greet", "instruction": "Hello?", "harness": HARNESS})
    result, _ = await run(smollm2, importable, task, "Hello.")
    blocks = python_blocks("docs/quickstart.md")
    assert blocks
    for block in blocks:
        exec_in_thread(block)
    printed = capsys.readouterr().out
    assert f"greet-0 agent 1.0 {result.statistics.trainable_tokens}" in printed
    assert "greet-0 COMPLETED" in printed


def test_no_demo_task_is_a_worked_example_of_its_model() -> None:
    shown = {word for example in WORKED_EXAMPLES for word in example.request.split()}
    for task in read_tasks(ROOT / "examples" / "demo.toml"):
        assert task.instruction not in {example.request for example in WORKED_EXAMPLES}
        assert set(task.instruction.split()) - shown, "what is to be written is the task's own"


def exec_in_thread(source: str) -> None:
    """A snippet may call `asyncio.run`, which the test's own loop forbids in its thread."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        thread.submit(exec, compile(source, "docs/quickstart.md", "exec"), {"__name__": "__main__"}).result()
