"""Gives freed memory back to the system: the C library keeps it, and a worker would hold the most it ever used."""

from __future__ import annotations

import ctypes
import gc

import pytest


def give_back() -> None:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


class MemoryReturn:
    """After each file of tests."""

    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        if nextitem is None or nextitem.path != item.path:
            give_back()
