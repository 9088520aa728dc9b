"""The walk of a session at a server, laid out from how long its stages took."""

from __future__ import annotations

from typing import Any

import pytest

from polar.dashboard.stage_times import stages_of
from polar.types import CallTimes, SessionResult, Stage
from viewed_session import Conversation

STAGE_S = {"QUEUED": 1.0, "INIT": 2.0, "READY": 3.0, "RUNNING": 10.0, "POSTRUN": 4.0}


def walk(stage_s: dict[str, float], *times: tuple[float, float], submitted: float = 100.0) -> dict[str, float]:
    values: dict[str, Any] = {"session_id": "add-0", "task_id": "add", "index": 0, "attempt": 1}
    result = SessionResult(stage=Stage.COMPLETED, stage_s=stage_s, **values)
    talk = Conversation()
    calls = [talk.say("p", "c", times=CallTimes(at, at, end)) for at, end in times]
    return {stage.value: at for stage, at in stages_of(result, submitted, calls)}


def test_without_calls_the_walk_begins_with_the_submission() -> None:
    assert walk(STAGE_S) == {
        "QUEUED": 100, "INIT": 101, "READY": 103, "RUNNING": 106, "POSTRUN": 116, "COMPLETED": 120,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("times", "running"),
    [
        ([(107.0, 108.0), (110.0, 115.0)], 106.0),
        ([(104.0, 105.0)], 104.0),
        ([(150.0, 151.0), (152.0, 158.0)], 148.0),
    ],
    ids=["they fit", "earlier: clocks differ", "later: it waited for a node, or ran again"],
)
def test_calls_stand_in_running(times: list[tuple[float, float]], running: float) -> None:
    stages = walk(STAGE_S, *times)
    assert stages["RUNNING"] == running
    assert stages["POSTRUN"] - stages["RUNNING"] == 10.0 and stages["RUNNING"] - stages["QUEUED"] == 6.0
    assert all(stages["RUNNING"] <= start and end <= stages["POSTRUN"] for start, end in times)


def test_a_session_that_never_ran_has_a_shorter_walk() -> None:
    assert walk({"QUEUED": 1.0, "INIT": 2.0}) == {"QUEUED": 100, "INIT": 101, "COMPLETED": 103}
    assert walk({}) == {"COMPLETED": 100}
