"""The conversations of the builders' tests, which are proven here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "builders"))
