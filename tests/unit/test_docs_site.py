"""The documentation as a site: what it is made of is complete, it builds strictly, and it asks no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_pages import api_page
from command_pages import command_page, commands
from error_pages import error_pages, known_errors
from outside_links import outside_pages, rewritten

from polar.dashboard.live.pages import dashboard
from polar.server.api_reference import operations_of
from polar.server.app import openapi_document

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def test_every_error_has_advice_and_all_advice_an_error() -> None:
    advice = tomllib.loads((DOCS / "errors.toml").read_text())
    assert [*advice] == sorted(advice), "in the order of the alphabet"
    assert advice.keys() == known_errors().keys()


def test_every_error_says_what_happened() -> None:
    silent = [name for name, page in error_pages().items() if re.search(r"\*\*What happened\.\*\* *$", page, re.M)]
    assert silent == []


def test_errors_come_from_the_code_and_from_the_table_of_verdicts() -> None:
    assert {"EngineDefect", "RunNotFound", "HarnessExit", "DiskFull", "LostNode"} <= known_errors().keys()
    assert "caused by [agent](../verdicts.md)" in error_pages()["errors/HarnessExit.md"]


def test_every_command_and_option_is_in_the_reference() -> None:
    page = command_page()
    for path, command in commands():
        assert f"\n## {path}\n" in page
        for parameter in command.params:
            shown = not getattr(parameter, "hidden", False) and parameter.name != "help"
            assert not shown or parameter.param_type_name == "argument" or f"`{parameter.opts[0]}`" in page, path
    assert {"polar run", "polar harness install", "polar init"} <= {path for path, _ in commands()}


def test_every_operation_is_in_the_reference() -> None:
    page = api_page()
    for operation in operations_of(openapi_document(dashboard())):
        assert f"### {operation.summary}\n\n`{operation.method} {operation.path}`" in page


def test_a_file_of_the_repository_becomes_a_page(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "deep").mkdir(parents=True)
    (tmp_path / "run.py").write_text("print(1)\n")
    text = "[a](../../run.py) [b](../b.md#x) [c](https://x) [d](#here)"
    (docs / "deep" / "a.md").write_text(text)
    (docs / "b.md").write_text("")
    assert outside_pages(docs) == {"repository/run.py.md": "# run.py\n\n````python\nprint(1)\n````\n"}
    wanted = text.replace("../../run.py", "../repository/run.py.md")
    assert rewritten(text, "deep/a.md", docs) == wanted


def in_nav(entry: Any) -> set[str]:
    if isinstance(entry, str):
        return {entry}
    return set().union(*map(in_nav, entry.values() if isinstance(entry, dict) else entry))


def test_every_page_stands_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - in_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]) == set()


class Loaded(HTMLParser):
    """Addresses that a browser asks by itself when it shows the page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "link", "img", "iframe", "source", "video", "audio"):
            self.addresses |= {value for name, value in attrs if name in ("src", "href", "srcset") and value}


@pytest.mark.check
def test_it_builds_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert [each for each in loaded.addresses if "//" in each] == [], page
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text()), sheet
