"""The `polar` command itself: quick to help, clear when it refuses."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.models import CommandInfo
from typer.testing import CliRunner, Result

from polar import __version__
from polar.cli.app import PolarGroup, app
from polar.cli.options import again
from polar.errors import PolarError, SessionError
from polar.types import Failure
from waiting import HANG_S

Polar = Callable[..., Result]

HEAVY = {"aiohttp", "numpy", "sqlalchemy", "starlette", "textual", "tokenizers", "uvicorn"}
SHOW_HELP = """
import sys
from polar.cli.app import main
sys.argv = ["polar", *sys.argv[1:]]
try:
    main()
finally:
    sys.stderr.write(" ".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY | {"pydantic", "msgspec"}),
        (["--version"], HEAVY | {"pydantic", "msgspec", "rich"}),
        (["show", "--help"], HEAVY),  # typer itself reads a command's arguments with pydantic
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW_HELP, *arguments], capture_output=True, text=True, check=True
    )
    assert set(done.stderr.split()) & heavy == set()
    assert "polar" in done.stdout


def test_the_version_is_printed() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == f"polar {__version__}"


def test_without_a_command_the_help_is_shown() -> None:
    assert "replay" in CliRunner().invoke(app, []).output


def app_that_raises(error: BaseException) -> typer.Typer:
    failing = typer.Typer(cls=PolarGroup)

    @failing.callback()
    def options() -> None: ...

    @failing.command()
    def fail() -> None:
        raise error

    return failing


FAILURE = Failure(where="builder", type="ValueError", message="bad calls")


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (PolarError("no engine; start one"), 2, "polar: no engine; start one\n"),
        (SessionError(FAILURE), 2, "polar: builder: bad calls\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_we_can_name_is_one_line(error: BaseException, exit_code: int, line: str) -> None:
    result = CliRunner().invoke(app_that_raises(error), ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", line)


def test_an_unexpected_error_is_not_hidden() -> None:
    result = CliRunner().invoke(app_that_raises(ZeroDivisionError()), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_ctrl_c_exits_130_also_out_of_a_running_loop() -> None:
    script = """
import asyncio, typer
from polar.cli.app import app

@app.command("wait")
def wait() -> None:
    async def forever():
        typer.echo("waiting")
        await asyncio.sleep(60)
    asyncio.run(forever())

app(["wait"])
"""
    with subprocess.Popen([sys.executable, "-uc", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(HANG_S) == 130


def test_the_runs_folder_comes_from_the_config_where_the_user_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "polar.toml").write_text('runs_dir = "elsewhere"\n')
    assert "no runs in elsewhere" in CliRunner().invoke(app, ["ls"]).stdout
    (tmp_path / "polar.toml").write_text("runs_dir = 3\n")
    result = CliRunner().invoke(app, ["ls"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "polar.toml" in result.stderr


@pytest.mark.parametrize(
    "command", [["ls", "--runs-dir", "there"], ["--runs-dir", "there", "ls"], ["ls", "--runs-dir=there"]]
)
def test_the_runs_folder_is_taken_before_and_after_the_command(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no runs in there" in CliRunner().invoke(app, command).stdout


def test_a_runs_folder_without_a_value_is_refused() -> None:
    refused = CliRunner().invoke(app, ["ls", "--runs-dir"])
    assert refused.exit_code == 2 and "--runs-dir" in refused.output


@pytest.mark.parametrize("command", [[], ["run"], ["show"], ["harness"], ["tasks", "ls"]])
def test_every_command_has_a_short_help_option(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "-h"])
    assert shown.exit_code == 0 and "Usage:" in shown.stdout


def test_next_commands_repeat_the_runs_folder_that_was_given() -> None:
    assert again(None)("ls").endswith(" ls")
    assert again(Path("my runs"))("show word-0").endswith(" show word-0 --runs-dir 'my runs'")


def test_a_wrong_engine_is_refused_with_its_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "polar.toml").write_text('[engine]\nname = "embedded"\noptions = { paralel = 4 }\n')
    (tmp_path / "tasks.jsonl").write_text('{"instruction": "x"}\n')
    refused = CliRunner().invoke(app, ["run", "tasks.jsonl"])
    assert refused.exit_code == 2
    told = "polar.toml: line 3: engine.options.paralel: unknown option; did you mean 'parallel'?"
    assert refused.stderr == f"polar: {told}\n"
    (tmp_path / "polar.toml").write_text('[engine]\nname = "embeded"\n')
    assert "line 2: engine.name: unknown engine 'embeded'; did you mean 'embedded'?" in (
        CliRunner().invoke(app, ["run", "tasks.jsonl"]).stderr
    )
    assert not (tmp_path / "polar-runs").exists()


def test_a_config_that_is_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "polar.toml").mkdir()
    refused = CliRunner().invoke(app, ["ls"])
    assert (refused.exit_code, refused.stderr) == (2, "polar: cannot read polar.toml: Is a directory\n")


def test_help_pages_fit_eighty_columns() -> None:
    """Typer keeps the line breaks of a docstring, except in its first paragraph: a longer line folds badly."""
    assert [
        f"{command.callback.__module__}: {line}"
        for command in commands_of(app)
        if command.callback is not None
        for line in (inspect.getdoc(command.callback) or "").partition("\n\n")[2].splitlines()
        if len(line) > 78
    ] == []


def commands_of(group: typer.Typer) -> Iterator[CommandInfo]:
    yield from group.registered_commands
    for each in group.registered_groups:
        assert each.typer_instance is not None
        yield from commands_of(each.typer_instance)


def started_in(folder: Path, *lines: str) -> str:
    """What a program prints that starts `polar --version` in this folder, and then looks."""
    code = "\n".join(["from polar.cli.app import main", "try: main()", "except SystemExit: pass", *lines])
    command = [sys.executable, "-P", "-c", code, "--version"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_modules_of_the_working_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "my_grader.py").write_text("NAME = 'mine'")
    assert started_in(tmp_path, "import my_grader; print(my_grader.NAME)").endswith("mine\n")


def test_a_module_of_the_working_folder_replaces_no_other(tmp_path: Path) -> None:
    (tmp_path / "uuid.py").write_text("print('not the one of Python')")
    (tmp_path / "orjson.py").write_text("print('not the installed one')")
    assert "not the" not in started_in(tmp_path, "import uuid, orjson")


def test_a_folder_that_is_gone_is_not_on_the_path(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from polar.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
