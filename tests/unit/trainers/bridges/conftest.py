from __future__ import annotations

from pathlib import Path

import pytest
from trainer_types import is_installed

from skips import leave_out

REAL = {
    "test_nemo_gym_capture_real.py": "nemo_gym.token_id_capture",
    "test_nemo_gym_real.py": "nemo_gym",
    "test_slime_real.py": "slime.utils.types",
    "test_verifiers_real.py": "verifiers",
    "test_verl_real.py": "verl",
}
"""Tests of a package's own functions, and the package. The other tests run on doubles of its types too."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    package = REAL.get(collection_path.name)
    if package is None or is_installed(package):
        return None
    leave_out(config, collection_path, package)
    return True
