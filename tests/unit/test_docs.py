"""The documentation names things that exist: links, commands, fields with their defaults, reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from polar import registry
from polar.cli.app import app
from polar.config import Config
from polar.types import Spec, TaskRequest, UntrainableReason, Violation

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WITH_REASONS = (
    "tokens/forest.py",
    "tokens/drift.py",
    "tokens/matching.py",
    "builders/chains.py",
    "builders/drops.py",
    "builders/links.py",
)
"""Where break reasons, drop reasons and tolerances are spelled out."""
NO_REASONS = {"assistant", "tool", "agent", "subagent", "compaction", "raw", "processed"} | {
    *("temperature", "top_p", "top_k", "min_p", "utf", "json_schema", "drop", "keep"),
    *("properties", "type", "default", "string", "number", "integer", "boolean", "array", "object"),
}
"""Other words that stand as plain strings in those files."""


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands_in(text: str) -> set[str]:
    """`polar X` in inline code and in blocks of shell commands."""
    inline = re.findall(r"`polar ([a-z][a-z-]*)", text)
    lines = "\n".join(fenced(text, "sh"))
    return {*inline, *re.findall(r"^(?:\S+=\S+ )*(?:\S*/)?polar ([a-z][a-z-]*)", lines, re.MULTILINE)}


def test_relative_links_resolve() -> None:
    broken: list[str] = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not re.match(r"[a-z]+:|#", target) and not (page.parent / target.partition("#")[0]).exists():
                broken.append(f"{page.relative_to(ROOT)} links to {target}")
    assert broken == []


def known_commands() -> set[str | None]:
    return {entry.name for entry in [*app.registered_commands, *app.registered_groups]}


def test_every_command_that_is_mentioned_exists() -> None:
    known = known_commands()
    mentioned = {name: page.name for page in PAGES for name in commands_in(page.read_text())}
    assert mentioned and mentioned.keys() <= known, {n: p for n, p in mentioned.items() if n not in known}


def test_every_command_is_mentioned_in_the_readme() -> None:
    assert known_commands() <= commands_in((ROOT / "README.md").read_text())


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names down to plain values, with their defaults."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not Spec:
            yield from fields_of(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.default


def as_shown(default: Any) -> str | None:
    """How the tables write a default; None: they need not."""
    shown = default.name if isinstance(default, Spec) else default
    if not isinstance(shown, str | int | float | Path):
        return None
    text = f"{shown:g}" if isinstance(shown, float) else str(shown)
    return text.lower() if isinstance(shown, bool) else text


def test_every_field_stands_in_the_quickstart_with_its_default() -> None:
    page = (ROOT / "docs/quickstart.md").read_text()
    offenders: list[str] = []
    for name, default in [*fields_of(TaskRequest), *fields_of(Config)]:
        rows = re.findall(rf"^\| `{re.escape(name)}` \|(.*)$", page, re.MULTILINE)
        text = as_shown(default)
        if len(rows) != 1:
            offenders.append(f"{name} has {len(rows)} rows in the tables of docs/quickstart.md")
        elif text is not None and f"`{text}`" not in rows[0]:
            offenders.append(f"{name}: the default is {text}")
    assert offenders == []


def options_row(name: str) -> str:
    """What the table of options says of a plug-in."""
    rows = re.findall(rf"^\| `{name}` \| (.*)$", (ROOT / "docs/quickstart.md").read_text(), re.MULTILINE)
    assert len(rows) == 1, f"{name} has {len(rows)} rows among the options in docs/quickstart.md"
    return rows[0]


@pytest.mark.parametrize("kind", ["harness", "runtime"])
def test_every_option_of_a_plug_in_stands_in_the_quickstart(kind: str) -> None:
    quickstart = (ROOT / "docs/quickstart.md").read_text()
    of_all = {
        "harness": re.findall(r"^\| each harness but `shell` \| (.*)$", quickstart, re.MULTILINE)[0],
        "runtime": options_row("local"),
    }
    for name in registry.BUILT_IN[kind]:
        shared = "" if name == "shell" else of_all[kind]
        named = set(re.findall(r"`(\w+)`", options_row(name) + shared))
        assert registry.find(kind, name).Options.model_fields.keys() <= named, name


def reasons_in(path: Path) -> set[str]:
    strings = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    words = {value for value in strings if isinstance(value, str) and re.fullmatch(r"[a-z]+(_[a-z]+)*:?", value)}
    return words - NO_REASONS


@pytest.mark.parametrize(
    ("words", "page"),
    [(Violation, "docs/audit.md"), (UntrainableReason, "docs/service.md")],
    ids=["audit", "result"],
)
def test_every_word_of_a_result_is_explained(words: Any, page: str) -> None:
    text = (ROOT / page).read_text()
    assert [word for word in get_args(words) if word and f"`{word}`" not in text] == []


@pytest.mark.parametrize("name", WITH_REASONS)
def test_every_reason_is_explained(name: str) -> None:
    page = (ROOT / "docs/design/forest.md").read_text()
    reasons = reasons_in(ROOT / "src/polar" / name)
    assert reasons
    missing = [reason for reason in sorted(reasons) if f"| `{reason}" not in page]
    assert missing == [], "a reason needs a row in a table of docs/design/forest.md"


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    linked = set(re.findall(r"\]\((docs/\w[\w-]*\.md)\)", text))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - linked == set()
