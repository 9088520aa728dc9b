from __future__ import annotations

from trainer_types import is_installed

REAL = {"test_verl_real.py": "verl", "test_verifiers_real.py": "verifiers"}
"""Tests of a package's own functions, and the package. The other tests run on doubles of its types too."""
collect_ignore = [name for name, package in REAL.items() if not is_installed(package)]
