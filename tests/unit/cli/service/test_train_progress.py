"""What `polar train` prints while it runs."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

from polar.cli.service import train_progress
from polar.cli.service.train_progress import TrainProgress, step_line
from polar.types import TrainingPoint
from waiting import until

FIGURES = "reward solved sessions no_contrast targets gap age wait_s learn_s push_s".split()


def a_step(**more: float) -> TrainingPoint:
    return TrainingPoint(phase="train", step=3, at=0.0, metrics={name: 1.0 for name in FIGURES} | more)


def a_screen(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> io.StringIO:
    screen = io.StringIO()

    def a_console(**_: Any) -> Console:
        return Console(file=screen, force_terminal=terminal, width=200, color_system=None)

    monkeypatch.setattr(train_progress, "console", a_console)
    monkeypatch.setattr(train_progress, "error_console", a_console)
    return screen


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, json: bool = False) -> str:
    screen = a_screen(monkeypatch, terminal=terminal)
    with TrainProgress(json=json) as progress:
        progress.doing("step 3: 5 of 16 groups sampled")
        progress.doing("step 3: [half]")
        progress.point(a_step())
        progress.doing("step 4: 0 of 16 groups sampled")
    return screen.getvalue()


def test_a_terminal_shows_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    assert text.index("step 3: [half]") < text.index("step    3  reward 1.000") < text.index("step 4: 0 of 16")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is shown again"


@pytest.mark.parametrize(("terminal", "json"), [(False, False), (True, True)])
def test_elsewhere_only_the_steps_are_printed(monkeypatch: pytest.MonkeyPatch, terminal: bool, json: bool) -> None:
    assert "groups sampled" not in shown(monkeypatch, terminal=terminal, json=json)


def test_a_log_gets_a_line_after_a_minute_without_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, seconds = a_screen(monkeypatch, terminal=False), iter([0.0, 59.0, 61.0, 61.0, 90.0, 100.0, 140.0])
    progress = TrainProgress(clock=lambda: next(seconds))
    progress.doing("evaluation: 1 of 9 sessions")
    progress.doing("evaluation: [2] of 9 sessions")
    progress.doing("evaluation: 3 of 9 sessions")
    progress.point(a_step())
    progress.doing("step 4: 0 of 16 groups sampled")
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["evaluation: [2] of 9 sessions", "step"]


async def test_a_log_gets_its_line_also_if_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, seconds = a_screen(monkeypatch, terminal=False), [0.0]
    monkeypatch.setattr(train_progress, "LOOK_S", 0.001)
    progress = TrainProgress(clock=lambda: seconds[0])
    async with progress.heartbeat():
        progress.doing("evaluation: 399 of 400 sessions")
        for _ in range(2):
            seconds[0] += 61.0
            printed = len(screen.getvalue())
            await until(lambda: len(screen.getvalue()) > printed)  # noqa: B023 - it is awaited here
        progress.point(a_step())
        seconds[0] += 61.0
        await asyncio.sleep(0.01)
    lines = screen.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["evaluation: 399 of 400 sessions"] * 2 + ["step"]


def test_a_step_says_how_many_sessions_it_left_out() -> None:
    assert "sessions 1  left out 4  no contrast" in step_line(a_step(left_out=4.0))
    assert "left out" not in step_line(a_step(left_out=0.0))
    assert "left out" not in step_line(a_step())
