"""The shape of the package, checked: imports point one way, files stay small, no drawer modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "polar"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A part may import parts of lower tiers, never of a higher one, and of its own tier only itself.
TIERS: list[set[str]] = [
    {"types"},
    {"errors"},
    {"config"},
    {"registry", "store", "client"},
    {"runtimes", "tokens"},
    {"engines", "harnesses", "builders", "evaluators"},
    {"gateway", "session", "server"},
    {"node", "data", "trainers", "cluster", "testing"},
    {"cli"},
]
TIER_OF = {part: level for level, parts in enumerate(TIERS) for part in parts}
DRAWERS = {"utils", "util", "helpers", "common", "misc", "manager", "models", "core"}
PLUG_POINTS = {
    "engines": {"embedded", "llamacpp", "scripted", "sglang", "vllm"},
    "harnesses": {"claude_code", "codex", "gemini_cli", "opencode", "pi", "qwen_code"},
    "runtimes": {"apptainer", "bubblewrap", "docker", "local"},
    "dialects": {"anthropic", "google", "openai_chat", "openai_completions", "openai_responses"},
}
MAX_LINES = 400
MAX_FUNCTION_LINES = 60


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "polar" else [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("polar.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    assert part in TIER_OF, f"{part} has no place in the architecture"
    for other in imported_parts(ast.parse(path.read_text())) - {part}:
        assert TIER_OF[other] < TIER_OF[part], f"{path.relative_to(ROOT)} may not import polar.{other}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_small_and_say_what_they_own(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "a module docstring says what the file owns"
    assert path.stem not in DRAWERS


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_plug_in_is_named_in_a_comparison_outside_its_folder(path: Path) -> None:
    for folder, names in PLUG_POINTS.items():
        if folder in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                constants = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not constants & names, f"{path.name}:{node.lineno} decides by the name of a plug-in"


def test_test_files_are_of_readable_size() -> None:
    assert [str(p) for p in TESTS if len(p.read_text().splitlines()) > 600] == []


def test_there_is_more_test_than_source() -> None:
    def lines(paths: list[Path]) -> int:
        return sum(len(p.read_text().splitlines()) for p in paths)

    assert lines(TESTS) >= lines(SOURCES)
