from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from calc_row import GOLD, TEST_PATCH, calc_row
from polar.data import row_files
from polar.data.row_files import raw_rows
from polar.data.swe.row import SweRow, files_of
from polar.errors import ConfigError

ROW = calc_row("c" * 40)


def test_lists_may_be_lists_or_json() -> None:
    for value in (["a", "b"], '["a", "b"]', ("a", "b")):
        assert SweRow.model_validate(ROW | {"FAIL_TO_PASS": value}).FAIL_TO_PASS == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"FAIL_TO_PASS": "[oops"}, "neither a list nor a list as JSON"),
        ({"FAIL_TO_PASS": []}, "any patch resolves the row"),
        ({"FAIL_TO_PASS": [1]}, "valid string"),
        ({"eval_script": "pytest"}, "needs one line with"),
        ({"eval_type": "other"}, "pass_and_fail"),
        ({"image_assets": '{"test_patch": [{"path": "x.png"}]}'}, "needs binary files"),
        ({"image_assets": "{"}, "image_assets"),
        ({"instance_id": ""}, "at least 1 character"),
    ],
)
def test_fields_that_cannot_be_used_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        SweRow.model_validate(ROW | changes)


def test_a_version_may_be_a_number() -> None:
    assert SweRow.model_validate(ROW | {"version": 1.1}).version == "1.1"


def test_pictures_of_the_statement_do_no_harm() -> None:
    for assets in ({"problem_statement": ["https://example.com/x.png"]}, "", None, '{"test_patch": []}'):
        SweRow.model_validate(ROW | {"image_assets": assets})


def test_absent_values_are_empty() -> None:
    row = SweRow.model_validate(ROW | {"version": None, "test_patch": None, "eval_script": None, "image": None})
    assert (row.version, row.test_patch, row.eval_script, row.image_of) == ("", "", "", "")


def test_a_row_of_swe_rebench_has_its_command_in_a_table() -> None:
    config = {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"}
    value = {name: field for name, field in ROW.items() if name not in ("eval_script", "log_parser", "image")}
    row = SweRow.model_validate(value | {"install_config": config, "docker_image": "swerebench/x"})
    assert (row.test_command, row.log_parser, row.image_of) == ("pytest -rA", "parse_log_pytest", "swerebench/x")
    assert not row.has_bug_patch


def test_a_row_of_swe_smith_brings_the_bug() -> None:
    row = SweRow.model_validate(ROW | {"image": None, "image_name": "jyangballin/x", "base_commit": None})
    assert row.has_bug_patch and row.image_of == "jyangballin/x"


def test_a_patch_names_its_files() -> None:
    moved = "diff --git a/old.py b/new/name.py\nsimilarity index 100%\nrename from old.py\nrename to new/name.py\n"
    binary = "diff --git a/x.png b/x.png\nindex 1..2 100644\nGIT binary patch\nliteral 0\n"
    gone = "diff --git a/gone.py b/gone.py\n--- a/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    assert files_of(GOLD) == ("calc.py",)
    assert files_of(TEST_PATCH + moved + binary + gone) == (
        "gone.py",
        "new/name.py",
        "old.py",
        "test_calc.py",
        "x.png",
    )


def test_lines_of_a_patch_that_look_like_headers_are_not_files() -> None:
    patch = (
        "diff --git a/a.sql b/a.sql\n--- a/a.sql\n+++ b/a.sql\n@@ -1,2 +1,2 @@\n--- comment of SQL\n+++ comment\n"
    )
    assert files_of(patch) == ("a.sql",)


@pytest.fixture(params=[".jsonl", ".json", ".parquet"])
def row_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"rows{request.param}"
    rows = [ROW, ROW | {"instance_id": "second"}]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows))
    return path


def test_three_formats_have_the_same_rows(row_file: Path) -> None:
    found = list(raw_rows(row_file))
    assert [each.value for each in found] == [ROW, ROW | {"instance_id": "second"}]
    assert found[1].where.startswith(f"{row_file.name}, ") and found[1].where.endswith(" 2")


def test_lists_in_parquet_are_lists(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist([ROW | {"FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []}])
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    (raw,) = raw_rows(tmp_path / "rows.parquet")
    assert SweRow.model_validate(raw.value).FAIL_TO_PASS == ("a",)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.csv", b"a", "ends in .jsonl"),
        ("rows.json", b"{}", "not a list of rows"),
        ("rows.json", b"[", "not JSON"),
        ("rows.parquet", b"PAR1 not", "cannot be read as parquet"),
        ("rows.jsonl", b"\xff\xfe", "codec"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        list(raw_rows(tmp_path / name))


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        list(raw_rows(tmp_path / "rows.jsonl"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(row_files, "import_module", missing)
    with pytest.raises(ConfigError, match=r"polar-rollout\[swe\]"):
        list(raw_rows(tmp_path / "rows.parquet"))
