from __future__ import annotations

from trainer_types import is_installed

REAL = {
    "test_nemo_gym_capture_real.py": "nemo_gym.token_id_capture",
    "test_nemo_gym_real.py": "nemo_gym",
    "test_slime_real.py": "slime.utils.types",
    "test_verifiers_real.py": "verifiers",
    "test_verl_real.py": "verl",
}
"""Tests of a package's own functions, and the package. The other tests run on doubles of its types too."""
collect_ignore = [name for name, package in REAL.items() if not is_installed(package)]
