from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.extend(str(HERE.parent / folder) for folder in ("engines", "node"))

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
