"""How the default model does on the demo tasks, through the real pi.

    python benchmarks/default_model.py [--samples 8] [--write]

For each way to show the tools: how often a session calls one, how many sampled tokens came without a logprob
before they were asked for again, seconds per session, and prompt tokens evaluated per turn. Seconds are of the
machine at hand; compare rows of one run, not runs. `--write` puts the table into docs/design/default-model.md.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.config import Config
from polar.data.source import TaskFileSource
from polar.data.tasks import read_tasks
from polar.node import Node, open_node
from polar.store.paths import RunPaths
from polar.types import Call, SessionResult, Spec, TaskRequest, Trajectory

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design" / "default-model.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Variant:
    name: str
    worked_examples: bool
    tools: tuple[str, ...] | None


VARIANTS = (
    Variant("all four tools of pi, listed only", worked_examples=False, tools=None),
    Variant("bash alone, listed only", worked_examples=False, tools=("bash",)),
    Variant("all four tools, worked examples", worked_examples=True, tools=None),
    Variant("bash alone, worked examples (the demo)", worked_examples=True, tools=("bash",)),
)


async def measure(variant: Variant, samples: int) -> dict[str, Any]:
    tasks = [_with_tools(task, variant.tools, samples) for task in read_tasks(ROOT / "examples" / "demo.toml")]
    renderer = Spec(name="smollm2", options={"worked_examples": variant.worked_examples})
    config = Config.model_validate({"model": {"renderer": renderer.model_dump()}})
    results: list[SessionResult] = []

    async def keep(result: SessionResult, _: Trajectory | None) -> None:
        results.append(result)

    with tempfile.TemporaryDirectory() as folder:
        paths = RunPaths.create(Path(folder))
        async with open_node(config, paths) as node:
            await node.serve(TaskFileSource(tasks, keep))
            return _row(variant, results, await _calls(node, results), node.engine.counters())


def _with_tools(task: TaskRequest, tools: tuple[str, ...] | None, samples: int) -> TaskRequest:
    harness = Spec(name="pi", options={} if tools is None else {"tools": tools})
    return task.model_copy(update={"harness": harness, "num_samples": samples})


async def _calls(node: Node, results: Sequence[SessionResult]) -> list[list[Call]]:
    return [await node.journal.calls(result.session_id) for result in results]


def _row(
    variant: Variant, results: Sequence[SessionResult], calls: list[list[Call]], counters: dict[str, Any]
) -> dict[str, Any]:
    sessions = len(results)
    called = sum(any(call.response.tool_calls for call in of_session) for of_session in calls)
    executed = sum(any(m.role == "tool" for call in of_session for m in call.new_messages) for of_session in calls)
    first = [c for of_session in calls for c in of_session if not c.continues]
    later = [c for of_session in calls for c in of_session if c.continues]
    sampled = sum(result.statistics.sampled_tokens for result in results)
    gaps = counters["recovered_logprobs"] + counters["missing_logprobs"]
    return {
        "tools shown as": variant.name,
        "sessions": str(sessions),
        "sessions with a tool call": f"{called / sessions:.0%}",
        "with a tool executed": f"{executed / sessions:.0%}",
        "mean reward": f"{_mean([r.score.reward or 0.0 for r in results if r.score]):.2f}",
        "merge rate": _merge_rate(results),
        "tokens left without a logprob by the server": f"{gaps} of {sampled}",
        "still without": str(counters["missing_logprobs"]),
        "seconds per session": f"{_mean([r.stage_s['RUNNING'] for r in results]):.1f}",
        "prompt tokens, first turn": f"{_mean([c.prompt_tokens for c in first]):.0f}",
        "of them evaluated": f"{_mean([c.evaluated_tokens or 0 for c in first]):.0f}",
        "prompt tokens, later turns": f"{_mean([c.prompt_tokens for c in later]):.0f}",
        "of these evaluated": f"{_mean([c.evaluated_tokens or 0 for c in later]):.0f}",
    }


def _merge_rate(results: Sequence[SessionResult]) -> str:
    pairs = sum(r.statistics.append_only_pairs for r in results)
    return f"{sum(r.statistics.merged_pairs for r in results) / pairs:.2f}" if pairs else "-"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Turned on its side: a variant is a column."""
    names = list(rows[0])
    lines = ["| " + " | ".join(str(row[name]) for row in [{name: name}, *rows]) + " |" for name in names]
    return "\n".join([lines[0], "|---" * (len(rows) + 1) + "|", *lines[1:]])


def write_page(text: str) -> None:
    page = PAGE.read_text()
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--samples", type=int, default=8, help="of each of the four demo tasks")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for variant in VARIANTS:
        rows.append(await measure(variant, options.samples))
        print(f"{variant.name}: {rows[-1]['sessions with a tool call']} of sessions call a tool", flush=True)
    command = f"`python benchmarks/default_model.py --samples {options.samples} --write`"
    text = f"{table(rows)}\n\nMeasured by {command} on {platform.machine()}, {platform.system()}."
    print(text)
    if options.write:
        write_page(text)


if __name__ == "__main__":
    asyncio.run(main())
