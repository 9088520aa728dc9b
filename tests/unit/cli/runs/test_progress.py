"""Progress of a run: what it says while sessions wait and run, on a terminal and in a pipe."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from polar.cli.runs import progress as module
from polar.cli.runs.progress import RunProgress, SpeedMeter, duration
from polar.runs.running import CallCounts, CallsFollower
from polar.types import SessionResult, Stage, TaskRequest, TrajectoryStatistics
from waiting import HANG_S

TASK = TaskRequest(task_id="add", instruction="x", num_samples=20)


def ended(index: int, **fields: object) -> SessionResult:
    values = {"session_id": f"add-{index}", "task_id": "add", "index": index, "attempt": 1}
    return SessionResult.model_validate({**values, "stage": Stage.COMPLETED, **fields})


def test_sessions_that_wait_and_each_stage_are_counted() -> None:
    progress = RunProgress([TASK], quiet=True)
    assert progress.words() == "0/20 done  QUEUED 20  0 calls"
    for index, stage in enumerate((Stage.INIT, Stage.RUNNING, Stage.RUNNING, Stage.POSTRUN)):
        progress.stage_changed(f"add-{index}", stage, 0.0)
    assert progress.words() == "0/20 done  QUEUED 16  INIT 1  RUNNING 2  POSTRUN 1  0 calls"
    progress.stage_changed("add-3", Stage.COMPLETED, 0.0)
    progress.finished(ended(3, statistics=TrajectoryStatistics(calls=3, sampled_tokens=10)))
    assert progress.words().startswith("1/20 done  QUEUED 16  INIT 1  RUNNING 2  3 calls  ")
    assert "tokens/s" in progress.words() and progress.words().endswith("left")


def test_calls_are_counted_while_sessions_run() -> None:
    progress = RunProgress([TASK], quiet=True)
    assert isinstance(progress, CallsFollower)
    progress.follow(lambda: CallCounts(calls=5, tokens=100, generating=2))
    assert "  5 calls  2 generating  " in progress.words()


def test_why_a_server_gives_sessions_to_no_node_is_said_until_one_begins() -> None:
    progress = RunProgress([TASK], quiet=True)
    progress.waits = "no live node has\nthe label tpu\x1b[2J"
    assert progress.words() == "0/20 done  QUEUED 20  0 calls  waits: no live node has the label tpu␛[2J"
    progress.stage_changed("add-0", Stage.INIT, 0.0)
    assert "waits" not in progress.words()


def test_a_server_that_does_not_answer_is_shown_instead_of_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress([TASK])
    progress.finished(ended(0))
    for _ in range(2):
        progress.note_outage("the server does not answer")
    assert progress.words() == "1/20 done  the server does not answer"
    progress.note_outage("")
    assert progress.words().endswith("left")
    assert capsys.readouterr().err.splitlines()[1:] == ["the server does not answer", "the server answers again"]


def test_a_session_that_the_server_cancelled_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress([TASK])
    progress.finished(ended(0, stage=Stage.CANCELLED, cancel_reason="group sums has enough sessions"))
    assert "group sums has enough sessions" in capsys.readouterr().err


def test_a_run_that_goes_on_counts_what_it_had() -> None:
    progress = RunProgress([TASK], quiet=True, earlier=[ended(0), ended(1)])
    assert progress.words() == "2/20 done  QUEUED 18  0 calls"


def test_the_speed_is_that_of_the_last_minute() -> None:
    now = 0.0
    meter = SpeedMeter(lambda: now)
    assert meter.tokens_s(0) is None
    now = 10.0
    assert meter.tokens_s(500) == 50.0
    now = 100.0
    assert meter.tokens_s(500) == 0.0
    now = 110.0
    assert meter.tokens_s(1500) == 10.0, "since the last sight of it that is a minute old"


@pytest.mark.parametrize(("seconds", "words"), [(5, "5 s"), (300, "5 min"), (9000, "2.5 h")])
def test_a_duration_is_short(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_without_a_terminal_a_line_comes_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.delenv("COLUMNS", raising=False)
    told = ""
    with RunProgress([TASK]) as progress:
        progress.phase("Starting the engine embedded")
        progress.phase("")
        deadline = time.monotonic() + HANG_S
        while told.count("0/20 done  QUEUED 20") < 2 and time.monotonic() < deadline:
            told += capsys.readouterr().err
            time.sleep(0.01)
    assert told.startswith("Starting the engine embedded ...\n0/20 done  QUEUED 20  0 calls\n")
    assert told.count("0/20 done") >= 2


def test_a_failure_is_not_folded_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    why = "the workspace has no such file and the command that looked for it ended with one"
    progress = RunProgress([TASK])
    progress.finished(ended(0, stage=Stage.FAILED, failure={"where": "init", "type": "X", "message": why}))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(why) and len(line) > 80


PRINT_TABLE = """
from polar.cli.output import print_table
print_table(["name", "#a", "#b", "words"], [("n" * 24, "1", "2", "w" * 300)], optional=["#a"])
"""


def test_a_table_in_a_pipe_has_one_line_per_row() -> None:
    assert len(_table({}).splitlines()) == 2


def test_a_narrow_terminal_leaves_columns_out_and_names_them() -> None:
    shown = _table({"COLUMNS": "48"})
    assert shown.splitlines()[-1] == "(not shown at 48 columns: a)"
    assert "n" * 24 in shown and shown.count("w") == 302, "nothing is cut"


def _table(env: dict[str, str]) -> str:
    whole = {"PYTHONPATH": str(Path(module.__file__).parents[3]), "PATH": "/usr/bin:/bin"} | env
    command = [sys.executable, "-c", PRINT_TABLE]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=whole).stdout
