"""`polar export`, on a run that an older version stored with a real engine, and on one of two sessions."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from atif import Trajectory
from typer.testing import Result

import polar as polar_package
from polar.data.export.jsonl import read_traces
from polar.store.paths import RunPaths
from waiting import HANG_S

Polar = Callable[..., Result]
STORED = Path(__file__).parents[3] / "stored" / "run-2026-11"

SLOW = """
import asyncio, sys
from polar.runs import exported

whole = exported._groups_of_run

async def slow(*arguments):
    async for group in whole(*arguments):
        yield group
        print("one group is written", flush=True)
        await asyncio.Event().wait()

exported._groups_of_run = slow
from polar.cli.app import main
main()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLAR_SERVER", raising=False)


def test_the_report_is_printed_and_kept(polar: Polar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["polar", "export", "--to", "tokens"])
    done = polar("export", str(STORED), "--to", "tokens", "--out", "set")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "2 rows in 1 files of set: 2 sessions, 2 traces, 96 trained tokens",
        "sessions left out: infrastructure 1",
        "traces left out: below_min_reward 1",
    ]
    report = json.loads((tmp_path / "set/export.json").read_text())
    assert report["run_id"] == "20261116-051514-492d" and report["versions"]["model"].startswith("SmolLM2")
    assert report["plan"]["to"] == "tokens" and report["plan"]["min_reward"] == 1.0
    assert report["command"] == "polar export --to tokens"
    assert (report["rows"], report["left_out"]["sessions"]) == (2, {"infrastructure": 1})


def test_json_prints_the_report(polar: Polar, tmp_path: Path) -> None:
    printed = json.loads(polar("export", str(STORED), "--to", "jsonl", "--json", "--out", "set").stdout)
    assert printed == json.loads((tmp_path / "set/export.json").read_text())


def test_the_traces_of_a_stored_run_come_back(polar: Polar, tmp_path: Path) -> None:
    assert polar("export", str(STORED), "--to", "jsonl", "--out", "set").exit_code == 0
    stored = [
        trace for s in polar_package.load_run(STORED) if s.result and s.result.trainable for trace in s.traces
    ]
    assert list(read_traces(tmp_path / "set")) == stored


def test_a_stored_run_is_valid_atif(polar: Polar, tmp_path: Path) -> None:
    assert polar("export", str(STORED), "--to", "atif", "--out", "set").exit_code == 0
    names = sorted(path.name for path in (tmp_path / "set/data").iterdir())
    assert names == ["killed-0.json", "turns-0.json", "turns-1.json"]
    for name in names:
        document = Trajectory.model_validate_json((tmp_path / "set/data" / name).read_text())
        assert document.agent.name == "shell" and document.final_metrics


def test_replies_that_were_cut_off_are_no_chat_examples(polar: Polar) -> None:
    """The stored replies all end at 24 tokens."""
    done = polar("export", str(STORED), "--to", "sft", "--out", "set")
    assert "traces left out: reply_cut_off 2, below_min_reward 1" in done.stdout
    assert "the data set is empty" in done.stdout
    assert "2 rows" in polar("export", str(STORED), "--to", "sft", "--out", "all", "--allow-inexact").stdout


def test_the_folder_is_named_by_run_and_format(polar: Polar, run: RunPaths, tmp_path: Path) -> None:
    assert polar("export").exit_code == 0
    assert (tmp_path / f"{run.run_id}-parquet/data/train-00000-of-00001.parquet").is_file()
    assert polar("export", run.run_id[:10], "--to", "tokens", "--pairs").exit_code == 0
    assert (tmp_path / f"{run.run_id}-tokens-pairs/export.json").is_file()


def test_it_is_not_overwritten_unless_told(polar: Polar) -> None:
    command = ("export", str(STORED), "--to", "tokens", "--out", "set")
    assert polar(*command).exit_code == 0
    again = polar(*command)
    assert again.exit_code == 2 and "set exists; --force replaces it" in again.stderr
    assert polar(*command, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "nine"), "no task 'nine' in this run; there are: broken, killed, turns"),
        (("--group", "nine"), "no group 'nine' in this run"),
        (("--pairs", "--to", "atif"), "pairs come as sft (chat) or as tokens"),
    ],
)
def test_a_wrong_choice_is_refused_before_anything_is_written(
    polar: Polar, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    refused = polar("export", str(STORED), "--out", "set", *arguments)
    assert refused.exit_code == 2 and message in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_tasks_can_be_chosen(polar: Polar, tmp_path: Path) -> None:
    polar("export", str(STORED), "--to", "jsonl", "--out", "set", "--task", "killed")
    assert [trace.session_id for trace in read_traces(tmp_path / "set")] == ["killed-0"]


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, "export", str(STORED), "--to", "jsonl", "--out", "set"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "one group is written\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_session_is_named_and_the_others_go_on(polar: Polar, tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "run")
    (tmp_path / "run/sessions/turns-0/traces.msgpack").write_bytes(b"\xc1 not msgpack")
    done = polar("export", str(tmp_path / "run"), "--to", "jsonl", "--out", "set")
    assert done.exit_code == 0 and "sessions left out: unreadable 1, infrastructure 1" in done.stdout
    assert "sessions/turns-0/traces.msgpack are damaged" in done.stdout
    assert [trace.session_id for trace in read_traces(tmp_path / "set")] == ["turns-1", "killed-0"]
