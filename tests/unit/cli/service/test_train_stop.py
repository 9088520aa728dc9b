"""How `polar train` ends on Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cli.service import train as command
from polar.cli.service.train_stop import StopSignals, where_it_stands
from polar.errors import PolarError

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra `train`")


def signals_sent(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals, fails: bool = False) -> list[str]:
    """A training that gets these signals; returns what it could still do."""
    done: list[str] = []

    async def training(config: Any, place: Any, progress: Any, stop: StopSignals, *, resume: bool) -> None:
        stop.catch()
        try:
            os.kill(os.getpid(), numbers[0])
            await asyncio.sleep(30)
        finally:
            for number in numbers[1:]:
                os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            done.append("saved")
            if fails:
                raise PolarError("the server ended, too")

    monkeypatch.setattr(command, "_train", training)
    return done


def trained(folder: Path, *options: str) -> Any:
    (folder / "train.toml").write_text('output = "out"\n[tasks]\ntrain = "tasks.toml"\n')
    return CliRunner().invoke(app, ["train", "train.toml", *options])


@needs_torch
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_the_training_and_says_how_to_go_on(
    number: signal.Signals, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = signals_sent(monkeypatch, number)
    state = tmp_path / "out" / "checkpoints" / "step-00012" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    ended = trained(tmp_path, "--seed", "3")
    assert (ended.exit_code, done) == (code, ["saved"])
    said = " ".join(ended.stderr.split())
    assert "a checkpoint of step 12 is in out/checkpoints/step-00012" in said
    assert "train train.toml --seed 3 --resume` goes on from there" in said


@needs_torch
def test_a_second_signal_does_not_interrupt_the_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = signals_sent(monkeypatch, signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
    assert trained(tmp_path).exit_code == 143
    assert done == ["saved"]


@needs_torch
def test_what_else_the_signal_ended_does_not_hide_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    signals_sent(monkeypatch, signal.SIGTERM, fails=True)
    ended = trained(tmp_path)
    assert ended.exit_code == 143
    assert "the server ended, too" in ended.stderr
    assert "out has no checkpoint; start it again without --resume" in ended.stderr


@needs_torch
def test_a_checkpoint_that_was_not_finished_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00003").mkdir(parents=True)
    assert "no checkpoint" in where_it_stands(tmp_path, "polar train t.toml --resume")
