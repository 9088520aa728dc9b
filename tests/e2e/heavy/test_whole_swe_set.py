"""Every bug of examples/swe is resolved by its fix, and a real model meets no fault of ours on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_run import polar_run
from swe_solver import Row, Solver, apply, build_set, verdicts, write_tasks

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Spec


def fix(row: Row) -> str:
    return apply(row["patch"])


async def test_every_fix_resolves_its_bug(
    smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = build_set(tmp_path)
    solver = Solver(smollm2, tmp_path, rows)
    seen = verdicts(await solver.solve(dict.fromkeys(rows, fix), Spec(name="local")))
    assert seen == dict.fromkeys(rows, (1.0, ""))


def test_a_real_model_gets_a_verdict_on_every_task(tmp_path: Path) -> None:
    """It is far too small to fix anything: what counts is that each session ends with a verdict."""
    rows = build_set(tmp_path)
    instances = list(rows)[::9]
    harness = {"name": "pi", "options": {"tools": ["bash"]}}
    budgets = {"run_s": 240, "max_calls": 4, "on_exhausted": "final_message"}
    tasks = write_tasks(
        tmp_path, instances, Spec(name="local"), harness=harness, budgets=budgets, sampling={"max_tokens": 128}
    )
    results = polar_run(tmp_path, tasks)["results"]
    assert len(results) == len(instances) >= 4
    assert [result["failure"] for result in results if result["failure"] is not None] == []
    assert [result["score"]["reward"] for result in results if result["score"]["reward"] not in (0.0, 1.0)] == []
