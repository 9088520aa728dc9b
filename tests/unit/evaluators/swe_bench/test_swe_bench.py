"""The evaluator in a folder runtime: real git, real pytest, the real swebench package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workplace import FolderRuntime, evidence

from calc_row import F2P, FIXED, P2P, SPOOFS, eval_script, make_repository
from polar.evaluators.swe_bench.evaluator import SweBench, SweBenchOptions
from polar.types import Score


class Case:
    def __init__(self, folder: Path) -> None:
        self.agent, self.own, self.logs = folder / "agent", folder / "own", folder / "logs"
        self.commit = make_repository(self.agent)
        make_repository(self.own)
        self.logs.mkdir()

    def write(self, path: str, text: str) -> None:
        (self.agent / path).parent.mkdir(parents=True, exist_ok=True)
        (self.agent / path).write_text(text)

    async def score(self, **changes: Any) -> Score:
        options: dict[str, Any] = {
            "instance_id": "local__calc-1",
            "repo": "local/calc",
            "version": "0.1",
            "fail_to_pass": (F2P,),
            "pass_to_pass": (P2P,),
            "eval_script": eval_script(self.commit, sys.executable),
            "test_files": ("test_calc.py",),
            "gold_files": ("calc.py",),
        }
        seen = evidence(FolderRuntime(self.agent), own_runtime=FolderRuntime(self.own))
        evaluator = SweBench(SweBenchOptions.model_validate(options | changes))
        return await evaluator.evaluate(msgspec.structs.replace(seen, logs=self.logs))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


async def test_the_gold_patch_resolves_the_row(case: Case) -> None:
    case.write("calc.py", FIXED)
    score = await case.score()
    assert (score.reward, score.reasons) == (1.0, ())
    assert score.metrics == {"f2p_passed": 1, "f2p_total": 1, "p2p_passed": 1, "p2p_total": 1, "exit_code": 0}
    assert "a / b" in (case.logs / "patch.diff").read_text()
    assert f"PASSED {F2P}" in (case.logs / "test_output.log").read_text()
    assert '"resolved": true' in (case.logs / "report.json").read_text()
    assert sorted(path.name for path in case.logs.iterdir()) == [
        "patch.diff",
        "report.json",
        "test_output.log",
        "work.txt",
    ]


@pytest.mark.parametrize("name", SPOOFS)
async def test_spoofs_earn_nothing(case: Case, name: str) -> None:
    path, text, reason = SPOOFS[name]
    case.write(path, text)
    score = await case.score()
    assert score.reward == 0.0
    assert any(each.startswith(reason) for each in score.reasons), score.reasons
