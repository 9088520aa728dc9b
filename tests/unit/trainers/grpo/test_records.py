"""The records of a run: appended, read again, also after a line was cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.trainers.grpo.records import METRICS_FILE, Records, read_points

pytestmark = pytest.mark.check


def test_a_line_that_was_cut_off_costs_only_itself(tmp_path: Path) -> None:
    Records(tmp_path).add("train", 1, {"reward": 0.5})
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 2, "phase": "tr')
    Records(tmp_path).add("train", 3, {"reward": 0.7})
    assert [point.step for point in read_points(tmp_path)] == [1, 3]


def test_of_a_step_that_was_done_again_the_later_point_stands(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for reward in (0.1, 0.2):
        records.add("train", 1, {"reward": reward})
    [point] = read_points(tmp_path)
    assert point.metrics == {"reward": 0.2}
