"""A group: its rewards, its rows, and how often its task was solved."""

from __future__ import annotations

import sys

import msgspec
import pytest
from finished import session

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.credit.pass_rates import mean_pass_at_k, mean_pass_hat_k
from polar.types import Failure, PolicySpan, Score, Span, Trajectory

GONE = Failure(where="engine", type="Gone", message="gone")


def group_of(*rewards: float, failed: int = 0) -> Group:
    broken = [session(f"gone{number}", 0.0, failure=GONE) for number in range(failed)]
    return Group("t", (*(session(f"s{number}", reward) for number, reward in enumerate(rewards)), *broken))


def test_its_rewards_are_those_that_are_compared() -> None:
    group = group_of(1.0, 0.0, failed=1)
    assert (group.rewards, group.has_contrast) == ([1.0, 0.0], True)
    assert not group_of(1.0, 1.0, failed=1).has_contrast
    assert not group_of(1.0).has_contrast and not Group("empty", ()).has_contrast


def test_a_difference_that_is_only_rounding_is_no_contrast() -> None:
    assert not group_of(0.1 + 0.2, 0.3).has_contrast


def test_process_rewards_are_contrast_too() -> None:
    first, second = session("a", 0.0), session("b", 0.0)
    score = Score(reward=0.0, call_rewards={"a.0": 1.0})
    judged = FinishedSession(first.result.model_copy(update={"score": score}), first.trajectory)
    group = Group("t", (judged, second))
    assert (group.rewards, group.has_contrast) == ([1.0, 0.0], True)


def test_its_rows_are_arrays() -> None:
    pytest.importorskip("numpy")
    row, other = group_of(1.0, 0.0).rows()
    assert (row["session_id"], row["group"], row["reward"], other["reward"]) == ("s0", "t", 1.0, 0.0)
    assert row["prompt_ids"].tolist() == [1] and row["completion_ids"].tolist() == [2, 2, 3]
    assert row["mask"].tolist() == [1, 1, 0] and row["logprobs"].tolist() == [-0.5, -0.5, 0.0]
    assert (row["advantages"].tolist(), str(row["advantages"].dtype)) == ([1.0, 1.0, 0.0], "float32")
    assert row["versions"].tolist() == [-1, -1, -1]  # no whole number
    assert group_of(1.0, 0.0).rows("mean")[1]["advantages"].tolist() == [-0.5, -0.5, 0.0]


def test_each_token_of_a_row_has_the_version_that_sampled_it() -> None:
    pytest.importorskip("numpy")
    finished = session("s", 1.0)
    [trace] = finished.traces
    span = Span("c", 0, 2, "", (PolicySpan("3", 0, 1), PolicySpan("4", 1, 1)))
    versioned = msgspec.structs.replace(trace, spans=(span,))
    group = Group(
        "t", (finished._replace(trajectory=Trajectory("s", "b", traces=(versioned,))), session("o", 0.0))
    )
    assert group.rows()[0]["versions"].tolist() == [3, 4, -1]


def test_rows_without_numpy_name_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ImportError, match="pip install numpy"):
        group_of(1.0, 0.0).rows()


def test_every_session_is_in_the_denominator() -> None:
    """Of four samples two are solved; infrastructure failed one of the others."""
    group = group_of(1.0, 1.0, 0.5, failed=1)
    assert (group.solved(), group.solved(at=0.5)) == (2, 3)
    assert mean_pass_at_k([group]) == mean_pass_hat_k([group]) == 0.5
    assert mean_pass_at_k([group], 2) == pytest.approx(5 / 6)
    assert mean_pass_hat_k([group], 2) == pytest.approx(1 / 6)
    assert mean_pass_at_k([group], at=0.5) == 0.75


def test_groups_weigh_the_same_whatever_their_size() -> None:
    assert mean_pass_at_k([group_of(1.0), group_of(0.0, 0.0, 0.0, 0.0)]) == 0.5


def test_without_enough_sessions_there_is_no_rate() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        mean_pass_at_k([])
    with pytest.raises(ValueError, match="1 <= k <= samples"):
        mean_pass_at_k([group_of(1.0, 0.0)], 4)
