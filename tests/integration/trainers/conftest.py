"""Partners of these tests are extras: `make check` installs them, `make test` leaves the tests out."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Fake engines, nodes and stored groups of other tests are used here too.
UNIT = HERE.parents[1] / "unit"
ENGINES = HERE.parent / "engines"
OTHERS = (
    ENGINES,
    ENGINES / "torch_engine",
    HERE.parent / "node",
    UNIT / "trainers" / "bridges",
    UNIT / "data" / "export",
    HERE.parents[2] / "examples" / "learning",
)
sys.path.extend(str(folder) for folder in OTHERS)
# TRL warns when its asynchronous trainer is imported; here a warning is an error.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

PARTNERS = {
    "torch": (
        "test_miniature.py",
        "test_weight_*.py",
        "test_updates_under_sessions.py",
        "test_trl_*steps.py",
        "test_sft_*.py",
    ),
    "trl": ("test_trl_*steps.py", "test_sft_*.py"),
    "matplotlib": ("test_eval_plot.py",),
}
collect_ignore_glob = [
    test for partner, tests in PARTNERS.items() if importlib.util.find_spec(partner) is None for test in tests
]
