"""Tasks that are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from polar.server.errors import Invalid
from polar.server.task_checks import MAX_DEPTH, MAX_PRIORITY, MAX_URL, refuse_if_wrong, target_of
from polar.types import TaskRequest


def task_of(**fields: Any) -> TaskRequest:
    return TaskRequest.model_validate({"task_id": "add", "instruction": "x", **fields})


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_plain_task_is_fine() -> None:
    refuse_if_wrong(task_of())
    refuse_if_wrong(
        task_of(callback_url="https://trainer.test/done", priority=-MAX_PRIORITY, files={"a/b.txt": ""})
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"harness": "nobody"}, "harness: unknown harness 'nobody'"),
        ({"harness": {"name": "shell", "options": {}}}, "harness.*command"),
        ({"runtime": {"name": "local", "options": {"cap": 1}}}, "runtime.*cap"),
        ({"builder": "collections:OrderedDict"}, "builder: 'collections:OrderedDict' would import a module"),
        ({"evaluator": ".relative:Class"}, 'operator add ".relative" to server.allowed_modules in polar.toml'),
        ({"evaluator": "module:"}, "unknown evaluator 'module:'"),
        ({"priority": MAX_PRIORITY + 1}, "priority: between"),
        ({"task_id": "x" * 127}, "task_id: 127 characters"),
        ({"files": {"/etc/passwd": ""}}, "files: '/etc/passwd'"),
        ({"files": {"a/../../b": ""}}, "files"),
        ({"files": {"": ""}}, "files"),
        ({"files": {"a\0b": ""}}, "files"),
        ({"callback_url": "file:///etc/passwd"}, "callback_url"),
        ({"metadata": {"deep": nested(MAX_DEPTH)}}, f"metadata: nested deeper than {MAX_DEPTH}"),
        ({"harness": {"name": "pi", "options": {"deep": nested(500)}}}, "harness.options: nested"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        refuse_if_wrong(task_of(**fields))


def test_all_problems_of_a_kind_are_named_at_once() -> None:
    with pytest.raises(Invalid, match=r"priority.*files.*callback_url"):
        refuse_if_wrong(task_of(priority=2**60, files={"..": ""}, callback_url="x"))
    with pytest.raises(Invalid, match=r"harness.*evaluator"):
        refuse_if_wrong(task_of(harness="a", evaluator="b"))


def test_nesting_up_to_the_limit_is_fine() -> None:
    refuse_if_wrong(task_of(metadata={"deep": nested(MAX_DEPTH - 2), "wide": [[1, 2, {"a": []}]] * 100}))


def combined(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"name": "combine", "options": {"parts": parts}}


MARKING = "marking_plugin:Class"
NAMING: list[dict[str, Any]] = [
    *({kind: MARKING} for kind in ("runtime", "harness", "builder", "evaluator")),
    {"evaluator": combined({"name": MARKING})},
    {"evaluator": combined({"name": "combine", "options": {"parts": [{"name": MARKING}]}})},
]
"""In each field, and within evaluators."""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Written when the module is imported."""
    written = tmp_path / "imported"
    (tmp_path / "marking_plugin.py").write_text(f"open({str(written)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("marking_plugin", None)
    return written


@pytest.mark.parametrize("fields", NAMING)
def test_a_module_that_is_not_allowed_is_refused_and_not_imported(fields: dict[str, Any], marker: Path) -> None:
    with pytest.raises(Invalid, match=r'add "marking_plugin" to server\.allowed_modules'):
        refuse_if_wrong(task_of(**fields), ("marking", "marking_plugin.below", "other"))
    assert not marker.exists()


@pytest.mark.parametrize("fields", NAMING)
def test_an_allowed_module_is_passed_on_and_not_imported(fields: dict[str, Any], marker: Path) -> None:
    refuse_if_wrong(task_of(**fields), ("marking_plugin",))
    refuse_if_wrong(task_of(**fields), ("*",))
    assert not marker.exists()


def test_beside_an_allowed_module_the_options_of_our_own_are_checked(marker: Path) -> None:
    with pytest.raises(Invalid, match=r"runtime.*cap"):
        refuse_if_wrong(task_of(harness=MARKING, runtime={"name": "local", "options": {"cap": 1}}), ("*",))
    assert not marker.exists()


def test_session_ids_are_padded_to_sort() -> None:
    task = task_of(num_samples=101)
    assert [task.session_id(index) for index in (0, 9, 100)] == ["add-000", "add-009", "add-100"]
    assert task_of(num_samples=1).session_id(0) == "add-0"
    assert task_of(num_samples=10).session_id(9) == "add-9"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://trainer.test/done", "http://trainer.test:80"),
        ("https://user:secret@trainer.test:9000/x?y=z", "https://trainer.test:9000"),
        ("HTTP://[::1]:8080", "http://::1:8080"),
        ("http://127.0.0.1:1/", "http://127.0.0.1:1"),
    ],
)
def test_a_target_is_scheme_host_and_port(url: str, target: str) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "",
        "trainer.test/done",
        "http://",
        "http:///path",
        "ftp://trainer.test",
        "javascript:alert(1)",
        "http://trainer.test/\0",
        "http://trainer.test/a b",
        "http://trainer.test/\r\nX-Header: 1",
        "http://schnee.test/雪",
        "http://trainer.test:99999/",
        "http://trainer.test:port/",
        "http://[::1/",
        "http://trainer.test/" + "x" * MAX_URL,
    ],
)
def test_an_address_nothing_can_be_sent_to_is_none(url: str) -> None:
    assert target_of(url) is None
