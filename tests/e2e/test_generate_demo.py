"""examples/sft/demo.py on a part of the SWE set: a real harness, a scripted model, TRL's trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples/sft/demo.py"

pytestmark = pytest.mark.check


def test_from_tasks_to_a_step_of_fine_tuning(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), str(tmp_path), "--only", "swe", "--per-repository", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "swe: 4 sessions load in datasets and pandas" in done.stdout
    assert "one step of SFTTrainer" in done.stdout
    card = json.loads((tmp_path / "swe/card.json").read_text())
    assert (card["all"]["accepted"], card["all"]["failed"], len(card["repositories"])) == (4, 0, 4)
    assert {each["tally"]["accepted"] for each in card["repositories"]} == {1}
    sides = [each["split"] for each in card["repositories"]]
    assert sorted(sides) == ["test", "train", "train", "train"]
