"""Checkpoints: the newest finished one counts, old ones go, and no task is skipped or repeated after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_model import save_tiny_model

from polar.errors import PolarError
from polar.trainers.grpo.checkpoints import STATE_FILE, Checkpoints, TrainState, read_state
from polar.trainers.grpo.config import TrainConfig
from polar.trainers.grpo.learner import Learner
from polar.trainers.grpo.model.policy_model import PolicyModel

pytestmark = pytest.mark.check


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    torch.set_num_threads(1)
    folder = save_tiny_model(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text("{}")
    return Learner(TrainConfig.model_validate({"tasks": {"train": "t.toml"}}), PolicyModel(str(folder), "cpu"))


def test_the_latest_is_found_and_old_ones_are_removed(tmp_path: Path, learner: Learner) -> None:
    checkpoints = Checkpoints(tmp_path / "out", keep=2)
    assert checkpoints.latest() is None
    for step in (5, 10, 15):
        checkpoints.save(learner, TrainState(run_id="r", step=step))
    latest = checkpoints.latest()
    assert latest is not None
    assert read_state(latest).step == 15
    assert sorted(path.name for path in latest.parent.iterdir()) == ["step-00010", "step-00015"]


def test_a_checkpoint_can_be_served(tmp_path: Path, learner: Learner) -> None:
    saved = Checkpoints(tmp_path / "out", keep=1).save(learner, TrainState(run_id="r", step=1))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in saved.iterdir()}


def test_one_that_was_not_finished_is_ignored(tmp_path: Path, learner: Learner) -> None:
    checkpoints = Checkpoints(tmp_path / "out", keep=2)
    saved = checkpoints.save(learner, TrainState(run_id="r", step=1))
    later = checkpoints.save(learner, TrainState(run_id="r", step=2))
    (later / STATE_FILE).unlink()
    assert checkpoints.latest() == saved


def test_trained_tasks_are_remembered_exactly() -> None:
    state = TrainState(run_id="r").with_trained([0, 1, 2, 5, 9])
    assert (state.trained_below, state.trained) == (3, (5, 9))
    assert state.all_trained == [0, 1, 2, 5, 9]


def test_a_save_that_fails_names_the_folder_and_leaves_the_last_one(
    tmp_path: Path, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path / "out", keep=2)
    kept = checkpoints.save(learner, TrainState(run_id="r", step=1))

    def full(*_: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file: file write failed")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(PolarError, match=r"step 2 cannot be saved in .*checkpoints: .*Free space there; --resume"):
        checkpoints.save(learner, TrainState(run_id="r", step=2))
    assert [path.name for path in kept.parent.iterdir()] == ["step-00001"]


def test_the_latest_is_the_one_with_the_highest_number(tmp_path: Path, learner: Learner) -> None:
    checkpoints = Checkpoints(tmp_path / "out", keep=2)
    for step in (99_999, 100_000):
        checkpoints.save(learner, TrainState(run_id="r", step=step))
    latest = checkpoints.latest()
    assert latest is not None and latest.name == "step-100000"
