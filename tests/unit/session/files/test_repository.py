from __future__ import annotations

from pathlib import Path

import pytest

from calc_row import make_bundle
from polar.session.files.repository import RepositoryError, missing_commits

GONE = "0" * 40


async def test_commits_are_looked_up_in_a_bundle_and_in_a_clone(tmp_path: Path) -> None:
    commit = make_bundle(tmp_path / "calc", tmp_path / "calc.bundle")
    for source in (tmp_path / "calc", tmp_path / "calc.bundle"):
        assert await missing_commits(source, [commit, GONE, commit]) == {GONE}


async def test_what_is_no_commit_is_missing(tmp_path: Path) -> None:
    make_bundle(tmp_path / "calc", tmp_path / "calc.bundle")
    assert await missing_commits(tmp_path / "calc", ["HEAD:calc.py", "no such thing"]) == {
        "HEAD:calc.py",
        "no such thing",
    }


async def test_what_is_no_repository_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.bundle").write_text("no")
    with pytest.raises(RepositoryError, match="neither a repository nor a complete bundle"):
        await missing_commits(tmp_path / "x.bundle", [GONE])
