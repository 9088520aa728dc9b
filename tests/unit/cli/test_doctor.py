"""`polar doctor`: what is there, what is not, and what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar.cli.app import app


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, {row["check"]: row for row in json.loads(result.stdout)["checks"]}


def test_everything_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real engine and the real pi, as a newcomer would check them."""
    monkeypatch.chdir(tmp_path)
    code, checks = doctor()
    assert code == 0, checks
    assert "proven: bridge to user, bridge to tool" in checks["renderer smollm2"]["found"]
    assert "0 missing" in checks["engine embedded"]["found"]
    assert checks["harness pi"]["found"].startswith("pi 1.")
    assert checks["runtime local"]["found"] == "usable"


def test_what_is_missing_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("polar.toml").write_text('[engine]\nname = "embedded"\noptions = { gguf = "absent.gguf" }\n')
    code, checks = doctor("--harness", "nobody", "--runtime", "moon")
    assert code == 1
    assert "install Node 20" in checks["node and npm"]["found"]
    assert "absent.gguf" in checks["engine embedded"]["found"]
    assert (
        "known: claude_code, codex, gemini_cli, opencode, pi, qwen_code, shell"
        in checks["harness nobody"]["found"]
    )
    assert "unknown runtime 'moon'" in checks["runtime moon"]["found"]


def test_people_get_a_line_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("polar.toml").write_text('[engine]\nname = "no.such:Engine"\n')
    result = CliRunner().invoke(app, ["doctor", "--harness", "pi"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line[:4] for line in lines] == ["ok  ", "ok  ", "ok  ", "FAIL", "ok  ", "ok  "]
    assert "no.such:Engine" in lines[3]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLAR_CACHE", str(blocked / "cache"))
    code, checks = doctor()
    assert code == 1 and "set POLAR_CACHE" in checks["cache"]["found"]
