"""Prints another address of `polar view` whenever the person at its terminal presses Enter."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def at_enter(act: Callable[[], None]) -> Generator[bool]:
    """Whether there is a terminal to press Enter at; while open, each line calls `act`."""
    if not sys.stdin.isatty():
        yield False
        return
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        try:
            line = os.read(terminal, 4096)
        except OSError:  # another process group has the terminal
            line = b""
        if line:
            act()
        else:
            loop.remove_reader(terminal)

    loop.add_reader(terminal, read)
    try:
        yield True
    finally:
        loop.remove_reader(terminal)
