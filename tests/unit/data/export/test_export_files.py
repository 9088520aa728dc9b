"""The folder of a data set: whole or not there at all."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest

from exported_sessions import a_group, a_session, exported, lines
from polar.data.export import export as exporting
from polar.data.export.export import export
from polar.data.export.files import ExportFolder, NotOverwritten
from polar.data.export.plan import ExportedGroup, ExportFormat, ExportPlan
from polar.errors import ConfigError, PolarError

JSONL = ExportPlan("jsonl")


async def interrupted(error: BaseException) -> AsyncGenerator[ExportedGroup]:
    yield a_group(a_session("t-0", 1.0))
    raise error


@pytest.mark.parametrize("to", ["jsonl", "parquet", "atif"])
@pytest.mark.parametrize("error", [PolarError("the server is gone"), asyncio.CancelledError()])
def test_an_export_that_does_not_end_leaves_nothing(
    tmp_path: Path, error: BaseException, to: ExportFormat
) -> None:
    with pytest.raises(type(error)):
        asyncio.run(export(interrupted(error), ExportPlan(to), ExportFolder(tmp_path / "set"), {}))
    assert list(tmp_path.iterdir()) == []


def test_an_older_export_survives_a_new_one_that_fails(tmp_path: Path) -> None:
    exported(tmp_path / "set", JSONL, a_group(a_session("t-0", 1.0)))
    folder = ExportFolder(tmp_path / "set", force=True)
    with pytest.raises(PolarError, match="gone"):
        asyncio.run(export(interrupted(PolarError("gone")), JSONL, folder, {}))
    assert len(lines(tmp_path / "set")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    exported(tmp_path / "set", JSONL, a_group(a_session("t-0", 1.0)))
    with pytest.raises(NotOverwritten, match="--force replaces it"):
        ExportFolder(tmp_path / "set")


def test_force_replaces_an_export_and_nothing_else(tmp_path: Path) -> None:
    exported(tmp_path / "set", JSONL, a_group(a_session("t-0", 1.0)))
    (tmp_path / "set/data/notes.txt").write_text("of the older export")
    with ExportFolder(tmp_path / "set", force=True) as place:
        assert place.parent == tmp_path, "on the same disk, so that it can be renamed"
    folder = ExportFolder(tmp_path / "set", force=True)
    asyncio.run(export(interrupted_never(), JSONL, folder, {"run_id": "r"}))
    assert orjson.loads((tmp_path / "set/export.json").read_bytes())["run_id"] == "r"
    assert not (tmp_path / "set/data/notes.txt").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").write_text("years of work")
    with pytest.raises(NotOverwritten, match="is not an export"):
        ExportFolder(tmp_path / "home", force=True)


async def interrupted_never() -> AsyncGenerator[ExportedGroup]:
    yield a_group(a_session("t-0", 1.0))


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    exported(tmp_path / "set", JSONL, a_group(a_session("t-0", 1.0)))
    assert len(lines(tmp_path / "set")) == 1
    assert stat.S_IMODE((tmp_path / "set").stat().st_mode) & 0o700 == 0o700


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PARQUET", "polar.data.export.no_such_module")
    with pytest.raises(ConfigError, match=r"pip install 'polar-rollout\[data\]'"):
        exported(tmp_path / "set", ExportPlan("parquet"), a_group(a_session("t-0", 1.0)))
    assert list(tmp_path.iterdir()) == []
