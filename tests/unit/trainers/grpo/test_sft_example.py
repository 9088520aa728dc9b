"""examples/sft/train.py: its loss is that of the labelled tokens alone, and a row is learned."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import save_tiny_model

from polar.trainers.grpo.model.policy_model import PolicyModel

pytestmark = pytest.mark.check
EXAMPLE = Path(__file__).parents[4] / "examples" / "sft" / "train.py"
ROWS = [
    {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, -100, -100, 4, 5]},
    {"input_ids": [1, 2, 3, 6, 7, 8], "labels": [-100, -100, -100, 6, -100, 8]},
]


@pytest.fixture(scope="module")
def example() -> Any:
    spec = util.spec_from_file_location("sft_train", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "other.jsonl").write_text('{"messages": []}\n')
    return tmp_path / "data"


def test_the_loss_is_the_mean_over_labelled_tokens(example: Any, data: Path, tmp_path: Path) -> None:
    model = PolicyModel(str(save_tiny_model(tmp_path / "model")), "cpu")
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=0.0)
    wanted: list[float] = []
    for row in ROWS:
        logprobs = model.score(row["input_ids"])
        wanted += [logprobs[place - 1] for place, label in enumerate(row["labels"]) if label != example.CONTEXT]
    loss = example.update(model, optimizer, example.sequences(data), 64)
    assert loss == pytest.approx(-sum(wanted) / len(wanted), abs=1e-5)


def test_a_whole_run_learns_its_rows_and_saves_a_checkpoint(
    example: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = save_tiny_model(tmp_path / "model"), tmp_path / "out"
    options = ["--model", str(model), "--out", str(out), "--epochs", "30", "--learning-rate", "1e-2"]
    monkeypatch.setattr(sys, "argv", ["train.py", str(data), *options])
    example.main()
    losses = [float(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert losses[-1] < losses[0] / 2
    before, after = (PolicyModel(str(folder), "cpu").score(ROWS[0]["input_ids"]) for folder in (model, out))
    assert sum(after[2:]) > sum(before[2:])


def test_a_folder_without_rows_names_the_command_that_makes_them(example: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="polar generate --to tokens"):
        example.sequences(tmp_path)
