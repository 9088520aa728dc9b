from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

NEEDS_TRL = ["test_trl_steps.py", "test_trl_async_steps.py"]
collect_ignore = [] if importlib.util.find_spec("trl") and importlib.util.find_spec("torch") else NEEDS_TRL

# The stored groups of the unit tests are used here too.
sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "trainers" / "bridges"))
# TRL warns when its asynchronous trainer is imported; here a warning is an error.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
