"""Chooses the package for the node's machine: native programs have one package per platform."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import TypeVar

from polar.errors import HarnessError

T = TypeVar("T")
Machine = tuple[str, str]
"""Operating system and processor, as Python names them."""


def fitting(choices: Mapping[Machine, T], what: str) -> T:
    machine = (sys.platform, platform.machine())
    if machine not in choices:
        raise HarnessError(f"there is no {what} package for {machine[0]} on {machine[1]}")
    return choices[machine]
