"""One cell of the fidelity table: its sessions on a real node, then `polar audit`, then its row."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from fidelity_cells import LIMITS, REASONS, Cell, Limits, Row
from fidelity_engines import CONTEXT_TOKENS, ScoredScript, qwen3_tokenizer
from fidelity_script import EXPECTED, INSTRUCTION, OUTPUTS, script_of, steps
from tokenizers import Tokenizer

from polar import registry
from polar.audit.rescoring import gaps_of, positions_to_score, score_trace
from polar.config import Config, ModelConfig
from polar.data.source import TaskFileSource
from polar.data.tasks import read_tasks
from polar.engines.base import Engine, EngineInfo
from polar.node import Node, open_node
from polar.store.paths import RunPaths, RunRecord
from polar.store.trajectories import read_trajectory
from polar.store.weights import default_weights
from polar.testing import Encoder, ScriptedEngine, encoder_of
from polar.tokens.base import Renderer
from polar.tokens.renderers.gguf_vocabulary import load_vocabulary
from polar.types import Call, SessionResult, Spec, TaskRequest, Trajectory, token_ids

DEMO = Path(__file__).parent.parent / "examples" / "demo.toml"
FREE_SAMPLES = 2
"""Of each demo task, where the model speaks for itself."""
OPTIONS = {"opencode": {"title_call": True}}
"""A question beside the conversation, where a harness can be told to ask one."""
SEEN = 10
"""By so many times the gap of an altered context must exceed the widest gap of the true one."""
PIECE_TOKENS = 3
"""So small that characters are cut by the stream."""


@dataclass(frozen=True)
class Place:
    """Where cells are run: a folder for their runs, and the address of a vLLM where the cell has one."""

    folder: Path
    url: str = ""

    async def run(self, cell: Cell) -> Row:
        begun = time.monotonic()
        config = await self._config(cell)
        paths = RunPaths.create(self.folder, cell.run_id)
        seen = Seen()
        async with _node(cell, config, paths) as node:
            paths.write_record(
                RunRecord(run_id=paths.run_id, config=config, versions=node.versions, started=time.time())
            )
            tasks = [_scripted_task(cell)] if cell.scripted else _free_tasks()
            await node.serve(TaskFileSource(tasks, seen.keep))
            for result in seen.results:
                seen.calls += await node.journal.calls(result.session_id)
        row = seen.row(cell)
        _take_audit(row, await audit(paths, LIMITS.get(cell.sampling)))
        if self.url and not row.findings:
            row.altered_gap = await _altered_gap(config, paths, seen)
        row.problems = [*missed_targets(cell, row), *(unlike_script(cell, seen) if cell.scripted else ())]
        row.problems += seen.failures()
        row.seconds = round(time.monotonic() - begun, 1)
        return row

    async def _config(self, cell: Cell) -> Config:
        """What a user's polar.toml would say: the audit reads it from the run's record."""
        renderer = Spec(name="smollm2")
        if cell.thinks:
            options = {"family": "qwen3", "tokenizer": str(await qwen3_tokenizer())}
            renderer = Spec(name="family", options=options)
        engine = Spec(name="vllm", options={"url": self.url}) if self.url else Spec(name="embedded")
        return Config(engine=engine, model=ModelConfig(renderer=renderer), runs_dir=self.folder)


@asynccontextmanager
async def _node(cell: Cell, config: Config, paths: RunPaths) -> AsyncGenerator[Node]:
    """A node whose engine is the config's or follows the script; then the config's may score what is said."""
    async with AsyncExitStack() as stack:
        renderer: Renderer = registry.make("renderer", config.model.renderer)
        await renderer.load()
        engine: Engine | None = None
        if cell.scripted:
            script = await _script(cell, renderer)
            engine = script
            if cell.sampling in LIMITS:
                scorer: Any = registry.make("engine", config.engine)
                stack.push_async_callback(scorer.stop)
                await scorer.start()
                engine = ScoredScript(script, scorer)
        yield await stack.enter_async_context(open_node(config, paths, engine=engine, renderer=renderer))


async def _script(cell: Cell, renderer: Renderer) -> ScriptedEngine:
    encoder: Encoder = load_vocabulary(await default_weights())
    if cell.thinks:
        encoder = encoder_of(Tokenizer.from_file(str(await qwen3_tokenizer() / "tokenizer.json")))
    info = EngineInfo("scripted", "script", CONTEXT_TOKENS, "raw", parallel=8, constrains=True)
    script = script_of(cell.harness, renderer, thinks=cell.thinks)
    return ScriptedEngine(encoder, script, info=info, piece_tokens=PIECE_TOKENS)


def _scripted_task(cell: Cell) -> TaskRequest:
    return TaskRequest.model_validate(
        {
            "task_id": cell.run_id,
            "instruction": INSTRUCTION,
            "harness": {"name": cell.harness, "options": OPTIONS.get(cell.harness, {})},
            "evaluator": {
                "name": "test_on_output",
                "options": {"command": "cat answer.txt", "expect_pattern": EXPECTED},
            },
            "budgets": {"run_s": 900.0, "max_calls": 20},
        }
    )


def _free_tasks() -> list[TaskRequest]:
    return [task.model_copy(update={"num_samples": FREE_SAMPLES}) for task in read_tasks(DEMO)]


@dataclass
class Seen:
    """What came out of a cell's sessions."""

    results: list[SessionResult] = field(default_factory=list[SessionResult])
    calls: list[Call] = field(default_factory=list[Call])

    async def keep(self, result: SessionResult, _: Trajectory | None) -> None:
        self.results.append(result)

    def row(self, cell: Cell) -> Row:
        told = [result.statistics for result in self.results]
        return Row(
            cell=cell.name,
            calls=len(self.calls),
            kinds=_summed([{call.kind: 1} for call in self.calls]),
            traces=sum(one.traces for one in told),
            prompt_tokens=max((call.prompt_tokens for call in self.calls), default=0),
            append_only_pairs=sum(one.append_only_pairs for one in told),
            merged_pairs=sum(one.merged_pairs for one in told),
            breaks=_summed([one.breaks for one in told]),
            tolerated=_summed([one.tolerant_matches for one in told]),
            versions=dict(self.results[0].versions) if self.results else {},
        )

    def failures(self) -> list[str]:
        return [
            f"session {result.session_id} ended as {result.stage.value}: {result.failure}"
            for result in self.results
            if result.stage.value != "COMPLETED" and not (result.failure and result.failure.agent)
        ]


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))


async def audit(paths: RunPaths, limits: Limits | None) -> dict[str, Any]:
    """What `polar audit RUN --json` prints; with the engine of the run's own config where there are limits."""
    scored: tuple[str, ...] = ()
    if limits is not None:
        scored = ("--engine", "--positions", str(limits.positions))
        scored += ("--max-mean", str(limits.mean), "--max-abs", str(limits.max))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from polar.cli.app import main; main()"),
        *("--runs-dir", str(paths.root.parent), "audit", paths.run_id, "--json", *scored),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    if process.returncode not in (0, 1) or not out:
        raise RuntimeError(f"polar audit of {paths.run_id} failed: {errors.decode()[-2000:]}")
    return json.loads(out)


def _take_audit(row: Row, report: dict[str, Any]) -> None:
    own = [finding for session in report["sessions"] for finding in session["findings"]]
    row.findings = [f"{one['where']}: {one['what']}" for one in (*own, *report["score_findings"])]
    if not report["proven"]:
        row.findings.append("nothing was proven")
    scores = report["scores"]
    if scores is not None:
        row.scored_tokens, row.mean_gap, row.max_gap = scores["tokens"], scores["mean"], scores["max"]


async def _altered_gap(config: Config, paths: RunPaths, seen: Seen) -> float | None:
    """The widest gap in a trace when one token in the middle of its prompt is another one."""
    session_id = seen.results[0].session_id
    trajectory = read_trajectory(paths.session(session_id).traces)
    first, *others = trajectory.traces
    ids = token_ids(first.prompt_ids)
    ids[len(ids) // 2] = ids[len(ids) // 2 + 1]
    altered = msgspec.structs.replace(first, prompt_ids=ids)
    assert altered.prompt_ids != first.prompt_ids
    scorer: Any = registry.make("engine", config.engine)
    try:
        await scorer.start()
        positions = positions_to_score(first, seen.calls, 0, "")
        changed = msgspec.structs.replace(trajectory, traces=(altered, *others))
        return gaps_of(await score_trace(changed, 0, positions, scorer)).max
    finally:
        await scorer.stop()


def missed_targets(cell: Cell, row: Row) -> list[str]:
    """Merge rate 1.0, every break explained, nothing found by the audit, and tokens scored where they can be."""
    missed = [f"a break that no harness can cause: {reason}" for reason in row.breaks if reason not in REASONS]
    if not row.append_only_pairs or row.merged_pairs != row.append_only_pairs:
        missed.append(f"{row.merged_pairs} of {row.append_only_pairs} append-only pairs merged")
    if cell.sampling in LIMITS and not row.scored_tokens:
        missed.append("no token was scored")
    if row.altered_gap is not None and row.altered_gap < SEEN * (row.max_gap or 0.0):
        missed.append("another token in the context makes no difference that can be seen")
    return missed + row.findings[:3]


def unlike_script(cell: Cell, seen: Seen) -> list[str]:
    """Where the conversation was not the one of the script, and so the row shows less than it seems to."""
    wanted = [(step.thought if cell.thinks else "", len(step.calls)) for step in steps(cell.harness)]
    agent = [call for call in seen.calls if call.kind == "agent"]
    told = [(call.response.reasoning.strip(), len(call.response.tool_calls)) for call in agent]
    unlike = [] if told == wanted else [f"thoughts and tool calls were {told}"]
    results = "".join(m.content for call in agent for m in call.new_messages if m.role == "tool")
    unlike += [f"no tool said {output!r}" for output in OUTPUTS if output not in results]
    score = seen.results[0].score if seen.results else None
    if score is None or score.reward != 1.0:
        unlike.append(f"the tools did not write the answer: {score}")
    return unlike
