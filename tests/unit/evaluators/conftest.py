from __future__ import annotations

from pathlib import Path

import pytest
from workplace import FolderRuntime


@pytest.fixture
def runtime(tmp_path: Path) -> FolderRuntime:
    return FolderRuntime(tmp_path)
