"""What `polar train` prints: a line for each step and each evaluation, and between them what is being done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import typer

from polar.cli.output import console, error_console

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

    from polar.types import TrainingPoint

SILENCE_S = 60.0
"""A log gets a line of what is being done after so long without any other."""
LOOK_S = 1.0
"""Between two looks at the clock."""


class TrainProgress:
    """With `json`, a line of JSON for each step and evaluation and nothing else."""

    def __init__(self, *, json: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._json = json
        self._out = console()
        self._errors = error_console(quiet=json)
        self._live: Status | None = None
        self._clock = clock
        self._printed_at = clock()
        self._doing = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_live()

    def phase(self, text: str) -> None:
        self._print(text, "dim")

    def warn(self, text: str) -> None:
        self._print(text, "yellow")

    def doing(self, text: str) -> None:
        """In a terminal, a line that the next one replaces. In a log, one now and then."""
        from rich.text import Text

        if self._json:
            return
        if not self._errors.is_terminal:
            self._doing = text
            self._print_if_silent()
        elif self._live is None:
            self._live = self._errors.status(Text(text))
            self._live.start()
        else:
            self._live.update(Text(text))

    @asynccontextmanager
    async def heartbeat(self) -> AsyncGenerator[None]:
        """While the body runs, a log gets that line even if nothing changes, as when a session hangs."""

        async def look() -> None:
            while True:
                await asyncio.sleep(LOOK_S)
                self._print_if_silent()

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()

    def point(self, point: TrainingPoint) -> None:
        if self._json:
            typer.echo(point.model_dump_json())
            return
        self._end_live()  # both are in the same terminal
        self._out.print(evaluation_line(point) if point.phase == "eval" else step_line(point))
        self._printed_at = self._clock()
        self._doing = ""

    def _print_if_silent(self) -> None:
        from rich.text import Text

        if self._doing and self._clock() - self._printed_at >= SILENCE_S:
            self._print(Text(self._doing), "dim")

    def _print(self, text: str | Text, style: str) -> None:
        self._end_live()
        self._errors.print(text, style=style, soft_wrap=True)
        self._printed_at = self._clock()

    def _end_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def step_line(point: TrainingPoint) -> str:
    v = point.metrics
    left_out = f"  left out {v['left_out']:.0f}" if v.get("left_out") else ""
    return (
        f"step {point.step:4}  reward {v['reward']:.3f}  solved {v['solved']:.3f}  sessions {v['sessions']:.0f}"
        f"{left_out}  no contrast {v['no_contrast']:.0%}  tokens {v['targets']:.0f}  gap {v['gap']:.3f}"
        f"  age {v['age']:.1f}  wait {v['wait_s']:.1f} s  train {v['learn_s']:.1f} s  push {v['push_s']:.1f} s"
    )


def evaluation_line(point: TrainingPoint) -> str:
    v = point.metrics
    families = "  ".join(
        f"{name.removeprefix('pass@1/')} {value:.2f}" for name, value in v.items() if name.startswith("pass@1/")
    )
    return (
        f"step {point.step:4}  held out: pass@1 {v['pass@1']:.3f}"
        f" ({v['pass@1_low']:.3f} to {v['pass@1_high']:.3f}) of {v['sessions']:.0f} sessions  {families}"
    )
