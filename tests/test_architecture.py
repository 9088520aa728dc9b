"""The shape of the package (docs/design/house.md): rooms, imports one way, small files, one name per thing.

Each check is one test over all files, and lists every offender."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "polar"
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A part may import parts of lower tiers, never of a higher one, and of its own tier only itself.
TIERS: list[set[str]] = [
    {"types", "bounded_http", "tls", "tls_server"},
    {
        "errors",
        "back_off",
        "log_buffer",
        "sse",
        "toml",
        "uvicorn_server",
        "credit",
        "monitoring",
    },
    {"config", "token_files"},
    {"registry", "store", "client"},
    {"runtimes", "tokens"},
    {"engines", "harnesses", "builders", "evaluators"},
    {"audit"},
    {"gateway", "session", "server"},
    {"node", "data", "testing", "child_processes"},
    {"runs", "tracing"},
    {"trainers"},
    {"cluster", "dashboard"},
    {"cli"},
]
TIER_OF = {part: level for level, parts in enumerate(TIERS) for part in parts}
DRAWERS = {"utils", "util", "helpers", "common", "misc", "manager", "models", "core"}
PLUG_POINTS = {
    "engines": {"embedded", "endpoint", "llamacpp", "pool", "scripted", "sglang", "torch", "vllm"},
    "harnesses": {"claude_code", "codex", "gemini_cli", "opencode", "pi", "qwen_code"},
    "runtimes": {"apptainer", "bubblewrap", "docker", "local"},
    "dialects": {"anthropic", "google", "openai_chat", "openai_completions", "openai_responses"},
}
MAX_MODULES = 13
MAX_LINES = 400
MAX_FUNCTION_LINES = 60
RIDDLES = re.compile(r"\b(is|are|be|was) (said|told)\b|\b[Nn]obody\b")
"""Passive sentences that hide who acts."""
MOST_RIDDLES = 20


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


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path, ast.parse(path.read_text())


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_imports_point_one_way() -> None:
    offenders: list[str] = []
    for path, tree in parsed():
        part = part_of(path)
        if part == "__init__":
            continue
        if part not in TIER_OF:
            offenders.append(f"{shown(path)}: {part} has no place in the architecture")
            continue
        for other in imported_parts(tree) - {part}:
            if TIER_OF[other] >= TIER_OF[part]:
                offenders.append(f"{shown(path)} may not import polar.{other}")
    assert offenders == []


def test_folders_are_rooms_and_not_corridors() -> None:
    modules = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert [f"{shown(folder)}: {count}" for folder, count in modules.items() if count > MAX_MODULES] == []


def test_unit_tests_mirror_the_rooms() -> None:
    rooms = {path.parent.relative_to(PACKAGE) for path in SOURCES}
    folders = {path.parent.relative_to(ROOT / "tests/unit") for path in TESTS if "tests/unit" in str(path)}
    assert sorted(map(str, folders - rooms)) == []


def test_a_test_file_has_a_name_of_its_own() -> None:
    """pytest imports files of folders that are no packages by their names alone."""
    plain = [path for path in TESTS if not (path.parent / "__init__.py").exists()]
    names = Counter(path.name for path in plain if path.name != "conftest.py")
    assert [shown(path) for path in plain if names[path.name] > 1] == []


def test_a_public_class_name_exists_once() -> None:
    found = defaultdict[str, list[str]](list)
    for path, tree in parsed():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(shown(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_sentences_have_an_actor() -> None:
    offenders = [
        f"{shown(path)}:{number} {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if RIDDLES.search(line)
    ]
    assert len(offenders) < MOST_RIDDLES, "\n".join(offenders)


def test_files_are_small() -> None:
    assert [shown(path) for path in SOURCES if len(path.read_text().splitlines()) > MAX_LINES] == []


def test_files_say_what_they_own() -> None:
    assert [shown(path) for path, tree in parsed() if not ast.get_docstring(tree)] == []


def test_there_are_no_drawers() -> None:
    assert [shown(path) for path in SOURCES if path.stem in DRAWERS] == []


def test_functions_are_short() -> None:
    offenders: list[str] = []
    for path, tree in parsed():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    offenders.append(f"{shown(path)}:{node.lineno} {node.name} has {lines} lines")
    assert offenders == []


def test_no_plug_in_is_named_in_a_comparison_outside_its_folder() -> None:
    offenders: list[str] = []
    for path, tree in parsed():
        names = set[str]().union(*(names for folder, names in PLUG_POINTS.items() if folder not in path.parts))
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                constants = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                if constants & names:
                    offenders.append(f"{shown(path)}:{node.lineno} decides by the name of a plug-in")
    assert offenders == []


def test_test_files_are_of_readable_size() -> None:
    assert [str(p) for p in TESTS if len(p.read_text().splitlines()) > 600] == []


def test_there_is_more_test_than_source() -> None:
    def lines(paths: list[Path]) -> int:
        return sum(len(p.read_text().splitlines()) for p in paths)

    assert lines(TESTS) >= lines(SOURCES)
