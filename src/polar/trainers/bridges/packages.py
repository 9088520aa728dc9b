"""The packages of other trainers: imported when a bridge is used, with an error that names the pip command."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from polar.errors import PolarError


class PackageMissing(PolarError, ImportError):
    """The package of a trainer is not installed."""


def load(module: str, pip: str) -> ModuleType:
    """The module, or an error that names the command which installs it: `pip install PIP`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PackageMissing(f"this bridge needs {module} ({error}): pip install {pip}") from error
