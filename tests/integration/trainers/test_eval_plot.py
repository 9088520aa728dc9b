"""The plot of an evaluation, with the real matplotlib."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.trainers.eval_plot import write_plot
from polar.trainers.evaluation import EvalSettings, Variant, VariantResults, report_of
from polar.types import Score, SessionResult, Stage

pytestmark = pytest.mark.check


def results(*rewards: float) -> list[SessionResult]:
    return [
        SessionResult(
            session_id=f"t{index // 2}-{index % 2}",
            task_id=f"t{index // 2}",
            index=index % 2,
            attempt=1,
            stage=Stage.COMPLETED,
            score=Score(reward=reward),
        )
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize("name", ["rates.svg", "rates.png"])
def test_each_variant_has_a_row_and_each_rate_a_panel(tmp_path: Path, name: str) -> None:
    variants = [
        VariantResults(Variant(policy="base", harness="pi", runtime="local"), results(0, 1, 0, 0)),
        VariantResults(Variant(policy="trained", harness="pi", runtime="local"), results(1, 1, 0, 1)),
    ]
    write_plot(report_of(variants, EvalSettings(ks=(1, 2))), tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    if name.endswith(".png"):
        assert drawn.startswith(b"\x89PNG")
        return
    for text in ("base pi local", "trained pi local", "pass@1", "pass@2", "pass^2"):
        assert f"<!-- {text} -->".encode() in drawn
