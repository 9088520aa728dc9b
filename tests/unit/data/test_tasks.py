"""Task files: what is right is read, and what is wrong is refused whole, by name and line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from polar.data.task_text import MAX_FILE_BYTES
from polar.data.tasks import read_tasks
from polar.errors import ConfigError
from polar.types import Spec, Strict, TaskRequest


class Stub:
    """A plug-in of the user's own, by 'module:Class'."""

    class Options(Strict):
        level: int = Field(default=1, ge=1)

    def evaluate(self, evidence: object) -> float:
        return 0.0


STUB = f"{__name__}:Stub"
STUBS = {"runtime": STUB, "harness": STUB, "builder": STUB, "evaluator": STUB}


def a_task(**fields: Any) -> dict[str, Any]:
    return {"instruction": "add 2 and 2", **STUBS, **fields}


def jsonl(folder: Path, *tasks: dict[str, Any] | str) -> Path:
    lines = [task if isinstance(task, str) else json.dumps(task) for task in tasks]
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(lines))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_tasks(path)
    return str(refused.value)


def test_jsonl_holds_one_task_per_line(tmp_path: Path) -> None:
    path = jsonl(tmp_path, a_task(task_id="a"), "", a_task(num_samples=3), "")
    tasks = read_tasks(path)
    assert [(task.task_id, task.num_samples) for task in tasks] == [("a", 1), ("task-0002", 3)]
    assert tasks[0].harness == Spec(name=STUB)


def test_json_holds_one_task_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(a_task(task_id="one")))
    assert [task.task_id for task in read_tasks(path)] == ["one"]
    path.write_text(json.dumps([a_task(task_id="one"), a_task(task_id="two")], indent=2))
    assert [task.task_id for task in read_tasks(path)] == ["one", "two"]


def test_made_up_ids_are_the_same_at_every_reading(tmp_path: Path) -> None:
    path = jsonl(tmp_path, a_task(), a_task())
    assert [task.task_id for task in read_tasks(path)] == ["task-0001", "task-0002"]
    assert read_tasks(path) == read_tasks(path)


def test_toml_defaults_lie_under_each_task(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text(f"""
[defaults]
num_samples = 4
runtime = "{STUB}"
builder = "{STUB}"
evaluator = "{STUB}"
harness = {{ name = "{STUB}", options = {{ level = 3 }} }}
budgets = {{ run_s = 60.0, max_calls = 8 }}
metadata = {{ source = "default" }}

[[tasks]]
instruction = "first"

[[tasks]]
instruction = '''
second
'''
num_samples = 1
harness = "{STUB}"
budgets = {{ run_s = 5 }}
metadata = {{ difficulty = 2 }}
""")
    first, second = read_tasks(path)
    assert (first.num_samples, first.budgets.run_s, first.harness.options) == (4, 60.0, {"level": 3})
    assert (second.num_samples, second.budgets.run_s, second.budgets.max_calls) == (1, 5.0, 8)
    assert second.harness.options == {}, "a spec replaces its default whole"
    assert second.metadata == {"source": "default", "difficulty": 2}


def test_line_separators_and_a_byte_order_mark_are_just_text(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    line = json.dumps(a_task(instruction="a\u2028b"), ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + line.encode() + b"\r\n")
    assert read_tasks(path)[0].instruction == "a\u2028b"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_samples": -1}, r"line 1: num_samples: input should be greater than or equal to 1 \(is -1\)"),
        ({"num_samples": "3"}, r"num_samples: input should be a valid integer \(is '3'\)"),
        ({"num_samples": True}, "num_samples: input should be a valid integer"),
        ({"num_samples": 10**30}, "JSON cannot hold: Integer exceeds"),
        ({"instruction": ""}, "instruction: string should have at least 1 character"),
        ({"instruction": None}, r"instruction: input should be a valid string \(is None\)"),
        ({"num_sample": 2}, "num_sample: unknown field; did you mean 'num_samples'"),
        ({"budgets": {"run": 2}}, "budgets.run: unknown field; did you mean 'run_s'"),
        ({"zzz": 2}, "zzz: unknown field; known: task_id, instruction"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature: input should be greater"),
        ({"task_id": "../../etc"}, r"task_id: letters, digits.* \(is '../../etc'\)"),
        ({"task_id": "x" * 129}, "task_id: letters, digits"),
        ({"task_id": "x" * 128}, "task_id: 128 characters leave no room"),
        ({"group_id": "a/b"}, "group_id: letters, digits"),
        ({"harness": "kodex"}, "harness: unknown harness 'kodex'; did you mean 'codex'. known: "),
        ({"runtime": {"name": "no.such.module:Class"}}, "runtime: .* cannot be loaded"),
        ({"builder": ":"}, "unknown builder ':'"),
        ({"evaluator": {"name": STUB, "options": {"level": 0}}}, "evaluator.options.level: input should be"),
        (
            {"evaluator": {"name": STUB, "options": {"lvl": 2}}},
            "options.lvl: unknown option; did you mean 'level'",
        ),
        ({"harness": {"nom": "pi"}}, "harness.name: missing"),
        ({"harness": 3}, "harness: "),
        ({"files": {"../out": ""}}, "files: '../out' must be a relative path"),
        ({"files": {"/etc/passwd": ""}}, "files: '/etc/passwd' must be"),
        ({"metadata": {"a": "\ud800"}}, "JSON cannot hold"),
    ],
)
def test_a_wrong_field_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_tasks(jsonl(tmp_path, a_task(**fields)))


def test_a_missing_instruction_is_named(tmp_path: Path) -> None:
    assert "line 1: instruction: missing; this field is required" in refusal(jsonl(tmp_path, "{}"))


def test_every_problem_is_shown_at_once(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path, a_task(num_samples=0, priority="high"), "{oops", a_task(), "[1]", a_task(harness="kodex")
    )
    lines = refusal(path).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [*["line 1"] * 2, "line 2", "line 4", "line 5"]


def test_a_thousand_problems_are_ten_and_a_count(tmp_path: Path) -> None:
    lines = refusal(jsonl(tmp_path, *["{}"] * 1000)).splitlines()
    assert len(lines) == 12
    assert lines[-1].strip() == "and 990 more"


def test_duplicate_ids_are_refused_also_against_made_up_ones(tmp_path: Path) -> None:
    path = jsonl(tmp_path, a_task(task_id="a"), a_task(task_id="b"), a_task(task_id="a"))
    assert "line 3: task_id: 'a' is used at line 1 too; rename one" in refusal(path)
    path = jsonl(tmp_path, a_task(task_id="task-0002"), a_task())
    assert "line 2: task_id: 'task-0002' is used at line 1" in refusal(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"instruction": "x", "instruction": "y"}', "the field 'instruction' occurs twice"),
        ('{"instruction": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"instruction": ' + "9" * 5000 + "}", "line 1: Exceeds the limit"),
        ('"just text"', "a task is an object"),
        ('{"instruction": "x"', "not JSON: Expecting"),
    ],
)
def test_json_that_others_would_not_read_is_refused(tmp_path: Path, line: str, message: str) -> None:
    assert message in refusal(jsonl(tmp_path, line))


def test_json_problems_carry_the_line_they_stand_on(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([a_task(), {"instruction": "x", **STUBS, "priority": 0.5}], indent=1))
    line = 1 + path.read_text().split('"x"')[0].count("\n") - 1
    assert f"line {line}: priority" in refusal(path)
    path.write_text('[\n{"instruction": "x"},\n oops]')
    assert "line 3: not JSON" in refusal(path)


def test_toml_problems_carry_the_line_of_the_field(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text('[[tasks]]\ninstruction = "x"\nnum_samples = 0\n\n  [[ tasks ]]\nnum_samples = 0\n')
    assert "line 3: num_samples" in refusal(path) and "line 6: num_samples" in refusal(path)
    assert "line 5: instruction: missing" in refusal(path)
    path.write_text('[[tasks]]\ninstruction = """\n[[tasks]]\n"""\nnum_samples = 0\n')
    assert "line 5: num_samples" in refusal(path)


def test_a_wrong_default_is_named_once_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text('[defaults]\nnum_sample = 2\n[[tasks]]\ninstruction = "x"\n[[tasks]]\ninstruction = "y"\n')
    assert refusal(path).count("num_sample:") == 1
    assert "line 2: num_sample: unknown field; did you mean 'num_samples'?" in refusal(path)


def test_an_option_is_named_as_it_was_written_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text('[[tasks]]\ninstruction = "x"\n[tasks.evaluator]\nname = "test_on_output"\n')
    path.write_text(f'{path.read_text()}options = {{ comand = "true" }}\n')
    unknown, missing = refusal(path).splitlines()[1:]
    assert unknown == "  line 5: evaluator.options.comand: unknown option; did you mean 'command'?"
    assert missing == "  line 5: evaluator.options.command: missing; this option is required"


def test_a_module_beside_the_file_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "my_grader.py").write_text("def score(evidence):\n    return 1.0\n")
    path = jsonl(tmp_path, a_task(evaluator="my_grader:score"))
    assert f"PYTHONPATH={tmp_path} polar ..." in refusal(path)
    (tmp_path / "my_grader.py").unlink()
    assert "put the folder of my_grader.py or my_grader/ on Python's path" in refusal(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = 3", "tasks: must be a list of tables"),
        ("tasks = [3]", "a task is an object"),
        ("defaults = 3\n[[tasks]]", "defaults: must be a table"),
        ("[task]\ninstruction = 'x'", "unknown table 'task'"),
        ("[[tasks]\n", "not TOML: .*line 1"),
        ("[defaults]\nnum_samples = 2", "the file holds no task"),
    ],
)
def test_toml_of_another_shape_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_tasks(path)


def test_a_set_of_many_lines_may_be_larger_than_other_files(tmp_path: Path) -> None:
    lines = MAX_FILE_BYTES // 1_000_000 + 1
    tasks = read_tasks(jsonl(tmp_path, *[a_task(instruction="x" * 1_000_000)] * lines))
    assert len(tasks) == lines


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    assert f"{MAX_FILE_BYTES + 1} bytes, more than the {MAX_FILE_BYTES}" in refusal(path)


def test_a_huge_line_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path, a_task(), a_task(instruction="x" * MAX_FILE_BYTES))
    assert f"line 2: longer than the {MAX_FILE_BYTES} bytes" in refusal(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\r\n ", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\xff", "not text in UTF-8: byte 0"),
        ('{"instruction": "x"}'.encode("utf-16"), "not text in UTF-8"),
        (b"\x00\x01\x02", "NUL bytes"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    assert message in refusal(path)


def test_what_is_no_task_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "tasks.yaml").write_text("a: 1")
    (tmp_path / "tasks").write_text("{}")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "none.json").write_text("[]")
    assert "no such file" in refusal(tmp_path / "missing.jsonl")
    assert "no parquet, JSONL or JSON file in it" in refusal(tmp_path / "folder.jsonl")
    assert "not a file" in refusal(tmp_path / "pipe.jsonl")
    assert "ends in .jsonl, .ndjson, .json, .toml, .parquet, not '.yaml'" in refusal(tmp_path / "tasks.yaml")
    assert "not 'nothing'" in refusal(tmp_path / "tasks")
    assert "the file holds no task" in refusal(tmp_path / "none.json")


def test_session_ids_sort_by_index() -> None:
    task = TaskRequest(task_id="add", instruction="x", num_samples=101)
    assert [task.session_id(index) for index in (0, 7, 100)] == ["add-000", "add-007", "add-100"]
