"""`polar init`: a project that can be run as it is, and never over files that are there."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from polar import config, registry
from polar.cli.app import app
from polar.cli.project.init import FILES
from polar.config import Config
from polar.data.tasks import read_tasks
from polar.evaluators.base import Evidence
from polar.types import Score


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert init().exit_code == 0
    return tmp_path


def test_it_names_the_files_and_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = init("my project")
    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if line] == [
        *(f"my project/{name}" for name in FILES),
        "Next: cd 'my project' && polar run tasks.toml",
    ]
    assert sorted(path.name for path in (tmp_path / "my project").iterdir()) == sorted(FILES)


def test_in_the_folder_itself_there_is_nothing_to_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert init().output.endswith("\nNext: polar run tasks.toml\n")


def test_it_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "tasks.toml").write_text("mine")
    done = init(str(tmp_path))
    assert done.exit_code == 2
    assert "tasks.toml already in" in done.output and "`polar init DIR`" in done.output
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("tasks.toml", "mine")]


def test_a_folder_that_cannot_be_made_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = init(str(tmp_path / "file" / "project"))
    assert done.exit_code == 2 and "cannot write a project" in done.output and "Traceback" not in done.output


def test_its_tasks_are_accepted_with_the_options_of_their_plug_ins(project: Path) -> None:
    tasks = read_tasks(project / "tasks.toml")
    assert len(tasks) == 2
    for task in tasks:
        assert registry.plugin_problems(task) == []


def test_its_config_holds_defaults(project: Path) -> None:
    """So that a reader sees what is in force, and removing a line changes nothing, except that a server and its
    nodes may import the project's own evaluator."""
    assert tomllib.loads((project / "polar.toml").read_text())
    own, allowed = Config(), {"allowed_modules": ("evaluator",)}
    parts = {"server": own.server.model_copy(update=allowed), "node": own.node.model_copy(update=allowed)}
    assert config.load(None) == own.model_copy(update=parts)


def test_a_server_of_the_project_takes_its_tasks(project: Path) -> None:
    chosen = config.load(None)
    for task in read_tasks(project / "tasks.toml"):
        assert registry.module_problems(task, chosen.server.allowed_modules, "server.allowed_modules") == []
        assert registry.module_problems(task, chosen.node.allowed_modules, "node.allowed_modules") == []


async def test_its_grader_scores_the_share_of_words(project: Path) -> None:
    from polar.cli.project.scaffold.evaluator import file_holds

    class Workspace:
        async def get(self, path: str) -> bytes:
            if path != "answer.txt":
                raise FileNotFoundError(path)
            return b"red and blue"

    evidence = Evidence(None, Workspace(), None, 0, False)  # pyright: ignore[reportArgumentType]
    score = await file_holds(evidence, "answer.txt", ["red", "green"])
    assert score == Score(reward=0.5, reasons=("answer.txt lacks 'green'",))
    assert (await file_holds(evidence, "no.txt", ["red"])).reward == 0.0


def test_its_readme_is_short(project: Path) -> None:
    assert len((project / "README.md").read_text().splitlines()) <= 10
