"""What goes in by default, what only on request, and that the rest is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

from exported_sessions import GONE, PROMPT, a_call, a_group, a_session, exported, lines
from polar.data.export.plan import ExportedSession, ExportPlan
from polar.errors import ConfigError


def inexact(name: str, reward: float = 1.0) -> ExportedSession:
    """A session whose trace says that its context is not what the engine had, with a certificate that knows."""
    session = a_session(name, reward)
    assert session.trajectory is not None and session.result.certificate is not None
    traces = tuple(msgspec.structs.replace(t, context_exact=False) for t in session.trajectory.traces)
    certificate = session.result.certificate.model_copy(update={"exact": False, "inexact_traces": 1})
    return session._replace(
        trajectory=msgspec.structs.replace(session.trajectory, traces=traces),
        result=session.result.model_copy(update={"certificate": certificate}),
    )


def session_ids(target: Path) -> list[str]:
    return [row["session_id"] for row in lines(target)]


def the_group() -> Any:
    lost = a_session("t-2", None, failure=GONE)
    stale = a_session("t-3", 1.0, stale=True)
    silent = a_session("t-4", 0.0, [a_call("silent", PROMPT, PROMPT, [9], received=False)])
    return a_group(a_session("t-0", 1.0), a_session("t-1", 0.0), lost, stale, silent, inexact("t-5"))


def test_only_what_is_exact_and_trainable_goes_in(tmp_path: Path) -> None:
    report = exported(tmp_path / "set", ExportPlan("jsonl"), the_group())
    assert session_ids(tmp_path / "set") == ["t-0", "t-1"]
    assert report["left_out"]["sessions"] == {
        "infrastructure": 1,
        "stale": 1,
        "no_trainable_tokens": 1,
        "not_exact": 1,
    }
    assert (report["sessions"], report["traces"], report["rows"], report["files"]) == (2, 2, 2, 1)


def test_inexact_traces_go_in_on_request(tmp_path: Path) -> None:
    exported(tmp_path / "set", ExportPlan("jsonl", allow_inexact=True), the_group())
    assert session_ids(tmp_path / "set") == ["t-0", "t-1", "t-5"]
    assert [row["context_exact"] for row in lines(tmp_path / "set")] == [True, True, False]


def test_untrainable_sessions_go_in_on_request_but_not_what_is_inexact(tmp_path: Path) -> None:
    report = exported(tmp_path / "set", ExportPlan("jsonl", untrainable=True), the_group())
    assert session_ids(tmp_path / "set") == ["t-0", "t-1", "t-2", "t-3"]
    assert report["left_out"]["sessions"] == {"no_traces": 1, "not_exact": 1}
    advantages = {row["session_id"]: row["advantage"] for row in lines(tmp_path / "set")}
    assert (advantages["t-2"], advantages["t-3"]) == (None, None)
    # t-4 has no token to train on; its reward of 0.0 is in the baseline all the same.
    assert [advantages["t-0"], advantages["t-1"]] == pytest.approx([2**0.5, -(0.5**0.5)])


@pytest.mark.parametrize("to", ["sft", "tokens"])
def test_what_a_model_imitates_has_the_full_reward(tmp_path: Path, to: Any) -> None:
    group = a_group(*(a_session(f"t-{n}", reward) for n, reward in enumerate([1.0, 0.5, 0.0])))
    report = exported(tmp_path / "a", ExportPlan(to), group)
    assert session_ids(tmp_path / "a") == ["t-0"]
    assert report["left_out"]["traces"] == {"below_min_reward": 2}
    exported(tmp_path / "b", ExportPlan(to, min_reward=0.5), group)
    assert session_ids(tmp_path / "b") == ["t-0", "t-1"]


def test_advantages_wait_for_the_whole_group(tmp_path: Path) -> None:
    report = exported(
        tmp_path / "set", ExportPlan("jsonl"), a_group(a_session("t-0", 1.0), a_session("t-1", 0.0), unfinished=2)
    )
    assert [row["advantage"] for row in lines(tmp_path / "set")] == [None, None]
    assert report["left_out"]["sessions"] == {"not_final": 2}


def test_the_baseline_is_over_the_group_also_if_one_task_is_exported(tmp_path: Path) -> None:
    group = a_group(a_session("a-0", 1.0), a_session("b-0", 0.0))
    exported(tmp_path / "set", ExportPlan("jsonl", task_ids=frozenset({"b"}), estimator="mean"), group)
    assert [(row["session_id"], row["advantage"]) for row in lines(tmp_path / "set")] == [("b-0", -0.5)]


@pytest.mark.parametrize(
    ("plan", "fix"),
    [
        ({"to": "parquet", "pairs": True}, "--to sft or --to tokens"),
        ({"to": "sft", "file": "parquet"}, "--to tokens"),
    ],
)
def test_a_plan_that_makes_no_sense_names_the_fix(plan: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigError, match=fix):
        ExportPlan(**plan)


@pytest.mark.parametrize("to", ["sft", "atif"])
def test_a_trace_without_its_calls_has_no_conversation(tmp_path: Path, to: Any) -> None:
    report = exported(tmp_path / "set", ExportPlan(to), a_group(a_session("t-0", 1.0)._replace(calls=())))
    assert (report["rows"], report["left_out"]["traces"]) == (0, {"no_calls": 1})


def test_its_tokens_are_exported_all_the_same(tmp_path: Path) -> None:
    exported(tmp_path / "set", ExportPlan("parquet"), a_group(a_session("t-0", 1.0)._replace(calls=())))
    (row,) = pyarrow.parquet.read_table(tmp_path / "set/data").to_pylist()
    assert (row["messages"], row["tools"], row["prompt_ids"]) == (None, None, PROMPT)
