"""Out and in again: the same ids, masks and logprobs to the last bit."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pandas
import pyarrow.parquet
import pytest
from datasets import load_dataset
from hypothesis import given
from hypothesis import strategies as st

from exported_sessions import BASH, a_call, a_group, a_session, exported, lines, traces_of, two_turns
from polar.data.export.columns import COLUMNS
from polar.data.export.jsonl import RowUnreadable, read_traces, trace_of
from polar.data.export.plan import ExportedGroup, ExportPlan
from polar.types import PolicySpan, Tool, Trace, logprobs, token_ids

FLOAT32 = st.floats(max_value=0, width=32, allow_nan=False, allow_infinity=False)
REPLY = st.lists(st.tuples(st.integers(0, 2**31 - 1), FLOAT32), min_size=1, max_size=20)


def said(reply: list[tuple[int, float]]) -> ExportedGroup:
    """One session whose last reply has these ids and logprobs."""
    first, second = two_turns()
    ids, values = token_ids(i for i, _ in reply), logprobs(v for _, v in reply)
    return a_group(
        a_session("t-0", 1.0, [first, msgspec.structs.replace(second, completion_ids=ids, logprobs=values)])
    )


def bits(values: Any) -> bytes:
    return logprobs(values).tobytes()


def same(trace: Trace, row: dict[str, Any]) -> None:
    assert list(row["prompt_ids"]) == trace.prompt_ids.tolist()
    assert list(row["completion_ids"]) == trace.response_ids.tolist()
    assert list(row["mask"]) == trace.loss_mask.tolist()
    assert bits(row["logprobs"]) == trace.logprobs.tobytes()


@given(REPLY)
def test_jsonl_gives_the_same_trace(reply: list[tuple[int, float]]) -> None:
    group = said(reply)
    with tempfile.TemporaryDirectory() as folder:
        exported(Path(folder) / "set", ExportPlan("jsonl"), group)
        (read,) = read_traces(Path(folder) / "set")
    (stored,) = traces_of(group)
    assert read == stored and read.logprobs.tobytes() == stored.logprobs.tobytes()


@given(REPLY)
def test_parquet_gives_the_same_bits(reply: list[tuple[int, float]]) -> None:
    group = said(reply)
    with tempfile.TemporaryDirectory() as folder:
        exported(Path(folder) / "set", ExportPlan("parquet"), group)
        (row,) = pyarrow.parquet.read_table(Path(folder) / "set" / "data").to_pylist()
    same(traces_of(group)[0], row)


@given(REPLY)
def test_tokens_have_a_label_exactly_where_the_mask_is_1(reply: list[tuple[int, float]]) -> None:
    group = said(reply)
    with tempfile.TemporaryDirectory() as folder:
        exported(Path(folder) / "set", ExportPlan("tokens"), group)
        (row,) = lines(Path(folder) / "set")
    (trace,) = traces_of(group)
    assert row["input_ids"] == [*trace.prompt_ids, *trace.response_ids]
    mask = [0] * len(trace.prompt_ids) + trace.loss_mask.tolist()
    assert [label != -100 for label in row["labels"]] == [bool(bit) for bit in mask]
    assert all(label in (-100, i) for i, label in zip(row["input_ids"], row["labels"], strict=True))


def test_a_trace_reads_with_spans_versions_and_metadata(tmp_path: Path) -> None:
    first, second = two_turns()
    mixed = msgspec.structs.replace(second, policy_spans=(PolicySpan("7", 0, 1), PolicySpan("8", 1, 2)))
    group = a_group(a_session("t-0", 0.25, [first, mixed]))
    exported(tmp_path / "set", ExportPlan("jsonl"), group)
    assert list(read_traces(tmp_path / "set")) == traces_of(group)
    assert traces_of(group)[0].policy_versions == ("7", "8")


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    exported(tmp_path / "set", ExportPlan("jsonl"), a_group(a_session("t-0", 1.0)))
    (path,) = (tmp_path / "set/data").iterdir()
    path.write_bytes(path.read_bytes() + b'{"session_id": "t-1"}\n')
    with pytest.raises(RowUnreadable, match=r"00001.jsonl:2: not a trace: KeyError: 'task_id'"):
        list(read_traces(tmp_path / "set"))


def test_pandas_reads_every_column_of_parquet(tmp_path: Path) -> None:
    first, second = two_turns()
    mixed = msgspec.structs.replace(second, policy_spans=(PolicySpan("7", 0, 1), PolicySpan("8", 1, 2)))
    group = a_group(a_session("t-0", 1.0, [first, mixed]), a_session("t-1", 0.0))
    exported(tmp_path / "set", ExportPlan("parquet"), group)
    frame = pandas.read_parquet(tmp_path / "set/data/train-00000-of-00001.parquet")
    assert sorted(frame.columns) == sorted(COLUMNS)
    row = frame.iloc[0].to_dict()
    same(traces_of(group)[0], row)
    assert row["messages"].startswith('[{"role":"user","content":"to first"}') and '"bash"' in row["tools"]
    assert [row[name] for name in ("task_id", "group_id", "sample", "session_id")] == ["t", "t", 0, "t-0"]
    assert [row[name] for name in ("harness", "harness_version", "model")] == ["pi", "pi 1.2", "tiny@1"]
    assert list(row["policy_versions"]) == ["7", "8"]
    assert list(row["token_versions"]) == [0, 0, -1, -1, 0, 1, 1]
    assert frame["reward"].tolist() == [1.0, 0.0] and frame["advantage"].tolist() == [1.0, -1.0]
    assert list(row["advantages"]) == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert row["metadata"] == '{"level":3}'


def test_columns_have_compact_types(tmp_path: Path) -> None:
    exported(tmp_path / "set", ExportPlan("parquet"), a_group(a_session("t-0", 1.0)))
    schema = pyarrow.parquet.read_schema(tmp_path / "set/data/train-00000-of-00001.parquet")
    found = {name: str(schema.field(name).type) for name in ("prompt_ids", "mask", "logprobs", "reward", "tools")}
    assert found == {
        "prompt_ids": "list<element: int32>",
        "mask": "list<element: int8>",
        "logprobs": "list<element: float>",
        "reward": "double",
        "tools": "string",
    }


@pytest.mark.parametrize("to", ["jsonl", "tokens", "parquet", "sft"])
def test_datasets_loads_the_folder_as_it_is(tmp_path: Path, to: Any) -> None:
    """`export.json` is not taken for data."""
    group = a_group(a_session("t-0", 1.0), a_session("t-1", 1.0))
    exported(tmp_path / "set", ExportPlan(to, shard_rows=1), group)
    loaded: Any = load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["session_id"][:] == ["t-0", "t-1"]
    if to in ("jsonl", "parquet"):
        for trace, row in zip(traces_of(group), loaded, strict=True):
            same(trace, row)


def test_datasets_keeps_tools_of_different_shapes(tmp_path: Path) -> None:
    """Rows with other tools and other parameters must not fill each other's schemas."""
    other = Tool(name="edit", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
    calls = [a_call("first", [1], [1], [10], tools=(BASH, other))]
    exported(tmp_path / "set", ExportPlan("sft"), a_group(a_session("t-0", 1.0), a_session("t-1", 1.0, calls)))
    loaded: Any = load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    found = [[tool["function"]["parameters"] for tool in row["tools"]] for row in loaded]
    written = [[tool["function"]["parameters"] for tool in row["tools"]] for row in lines(tmp_path / "set")]
    assert found == written


def test_a_set_without_rows_still_loads(tmp_path: Path) -> None:
    exported(tmp_path / "set", ExportPlan("parquet", min_reward=2.0), a_group(a_session("t-0", 1.0)))
    table = pyarrow.parquet.read_table(tmp_path / "set/data/train-00000-of-00001.parquet")
    assert table.num_rows == 0 and table.column_names == list(COLUMNS)


def test_tokens_as_parquet(tmp_path: Path) -> None:
    group = a_group(a_session("t-0", 1.0))
    exported(tmp_path / "a", ExportPlan("tokens", file="parquet"), group)
    exported(tmp_path / "b", ExportPlan("tokens"), group)
    assert pyarrow.parquet.read_table(tmp_path / "a/data").to_pylist() == lines(tmp_path / "b")


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_large_sets_are_cut_into_files_in_order(tmp_path: Path, to: Any) -> None:
    group = a_group(*(a_session(f"t-{n}", 1.0) for n in range(5)))
    report = exported(tmp_path / "set", ExportPlan(to, shard_rows=2), group)
    names = sorted(path.name for path in (tmp_path / "set/data").iterdir())
    assert names == [f"train-{n:05}-of-00003.{to}" for n in range(3)] and report["files"] == 3
    loaded: Any = load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["session_id"][:] == [f"t-{n}" for n in range(5)]


def test_files_are_also_cut_by_size(tmp_path: Path) -> None:
    group = a_group(*(a_session(f"t-{n}", 1.0) for n in range(3)))
    assert exported(tmp_path / "set", ExportPlan("jsonl", shard_bytes=1), group)["files"] == 3


def test_an_infinite_logprob_never_gets_into_a_trace() -> None:
    row = {
        "prompt_ids": [1],
        "completion_ids": [2],
        "mask": [1],
        "logprobs": [-math.inf],
        "spans": [],
        "metadata": {},
    }
    labels = {"session_id": "t-0", "task_id": "t", "group": "t", "sample": 0, "attempt": 1, "kind": "agent"}
    with pytest.raises(RowUnreadable, match="logprob -inf"):
        trace_of(row | labels | {"reward": None, "context_exact": True, "failure": ""})
