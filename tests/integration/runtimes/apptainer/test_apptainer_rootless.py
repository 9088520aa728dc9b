"""The other tests of this folder, run by an ordinary user."""

from __future__ import annotations

from pathlib import Path

import pytest

from ordinary_user import ordinary_user

pytestmark = pytest.mark.check

HERE = Path(__file__).resolve().parent
NAMES = ("port", "containment", "sweep")


@pytest.mark.usefixtures("image")
def test_an_ordinary_user_can_do_all_of_it() -> None:
    with ordinary_user() as user:
        user.bring(HERE)
        files = [str((HERE / f"test_apptainer_{name}.py").relative_to(HERE.parents[3])) for name in NAMES]
        run = user.pytest(*files)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
