"""How `polar train` ends early: Ctrl-C or SIGTERM, and what it says about going on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path


class StopSignals:
    """Ctrl-C and SIGTERM cancel the task that calls `catch`. A second one has no effect: it would interrupt the
    saving of the checkpoint."""

    def __init__(self, on_stop: Callable[[str], None]) -> None:
        self._on_stop = on_stop
        self._caught: signal.Signals | None = None

    @property
    def came(self) -> bool:
        return self._caught is not None

    @property
    def name(self) -> str:
        return "SIGTERM" if self._caught == signal.SIGTERM else "Ctrl-C"

    @property
    def exit_code(self) -> int:
        """As a shell reports a program that the signal ended."""
        return 128 + (self._caught or signal.SIGINT)

    def catch(self) -> None:
        main, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert main is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number, main)

    def _stop(self, number: signal.Signals, main: asyncio.Task[object]) -> None:
        if self._caught is None:
            self._caught = number
            self._on_stop(f"{self.name}: stopping; an update that has begun ends first")
            main.cancel()


def where_it_stands(output: Path, resume_command: str) -> str:
    """The last checkpoint of a run that ended early, and the command that goes on from it."""
    from polar.trainers.grpo.checkpoints import Checkpoints

    latest = Checkpoints(output, 1).latest()
    if latest is None:
        return f"no step was finished, so {output} has no checkpoint; start it again without --resume"
    step = int(latest.name.rpartition("-")[2])
    return f"a checkpoint of step {step} is in {latest}; `{resume_command}` goes on from there"
