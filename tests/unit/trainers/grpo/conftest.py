"""These tests need the extra `train`: `make check` installs it, `make test` leaves them out."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*test_*.py"]
