"""Memory of processes that run tests: what was collected is not looked through again, what was freed goes back.

A worker holds some thousand tests and all modules that they import. Python's garbage collector would walk through
them again and again, the longer the run the more often.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Generator

import pytest


def give_back() -> None:
    """To the system: the C library keeps freed memory, and a worker would hold the most it ever used."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


class Memory:
    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Collected tests live to the end, so the garbage collector leaves them alone."""
        gc.disable()
        try:
            return (yield)
        finally:
            gc.collect()
            gc.freeze()
            gc.enable()

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """After each file."""
        if nextitem is None or nextitem.path != item.path:
            give_back()
