"""What `polar top` says in words: numbers short, ages readable, what wants attention first."""

from __future__ import annotations

import pytest

from polar.cli.top.feed import Snapshot
from polar.cli.top.sections import age, head_lines, sections, short
from polar.types import NodeStatus
from polar.types.service.overview import EngineRate, FailureCount, WaitReason

from .fake_service import a_node, a_session, an_overview


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-3, "0s"), (59.9, "59s"), (200, "3m20s"), (7500, "2h05m"), (273_600, "3d04h")],
)
def test_ages(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (12.4, "12"), (12_340, "12.3k"), (4e6, "4.0M")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


def test_a_service_without_work_says_so() -> None:
    overview = an_overview(rate=EngineRate(), window=0, stages={}, oldest_queued_s=None)
    assert head_lines(overview)[1:] == ["queued 0  running 0", "no calls measured yet", "no session has ended yet"]


def test_failed_calls_are_named_only_if_there_are_any() -> None:
    assert "FAILED" not in head_lines(an_overview())[2]
    assert head_lines(an_overview(rate=EngineRate(over_s=9, failed_calls=4)))[2].endswith("4 FAILED")


def test_the_reason_of_most_waiting_sessions_is_in_the_head() -> None:
    tpu = WaitReason(why="no live node has the label tpu", sessions=1200, task_id="a")
    full = WaitReason(why="all 8 slots of 2 nodes that can run it are in use", sessions=7, task_id="b")
    assert len(head_lines(an_overview())) == 4
    assert head_lines(an_overview(waiting=(tpu,)))[4] == "1.2k wait: no live node has the label tpu"
    both = head_lines(an_overview(waiting=(tpu, full)))
    assert both[4] == "1.2k wait; 7 for other reasons: no live node has the label tpu" and len(both) == 5


def rows_of(name: str, snapshot: Snapshot) -> list[tuple[str, ...]]:
    (section,) = [each for each in sections(snapshot) if each.name == name]
    return [row.cells for row in section.rows]


def test_nodes_that_want_attention_come_first() -> None:
    nodes: list[NodeStatus] = [a_node(1), a_node(2, draining=True), a_node(3, alive=False)]
    rows = rows_of("nodes", Snapshot(an_overview(nodes=tuple(nodes))))
    assert [(row[0], row[2]) for row in rows] == [("node-3", "silent"), ("node-2", "draining"), ("node-1", "well")]


def test_stuck_sessions_come_first() -> None:
    found = rows_of("sessions", Snapshot(an_overview(), (a_session("sort-0"), a_session("sort-1"))))
    assert [row[0] for row in found] == ["sort-1", "sort-0"]
    assert found[0][-1] == "STUCK: RUNNING for 900 s; budgets.run_s is 300"


def test_a_cancel_that_is_under_way_is_noted() -> None:
    ((*_, note),) = rows_of("sessions", Snapshot(an_overview(), (a_session("a-0", cancel_requested=True),)))
    assert note == "cancel requested"


def test_infrastructure_is_kept_apart_from_the_agent() -> None:
    failures = [
        FailureCount(where="harness", type="ExitCode", agent=True, count=90, session_id="a"),
        FailureCount(where="disk", type="OSError", agent=False, count=1, session_id="b"),
        FailureCount(where="engine", type="EngineFailure", agent=False, count=5, session_id="c"),
    ]
    rows = rows_of("failures", Snapshot(an_overview(failures=tuple(failures))))
    assert [row[:3] for row in rows] == [
        ("INFRASTRUCTURE", "5", "engine"),
        ("INFRASTRUCTURE", "1", "disk"),
        ("agent", "90", "harness"),
    ]
