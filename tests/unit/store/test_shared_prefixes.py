"""Traces that share a prefix in one file: stored without it where that is proven, else whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from polar.store.trajectories import TrajectoryUnreadable, read_trajectory, write_trajectory
from polar.types import Span, Trace, Trajectory, logprobs, loss_mask, token_ids
from polar.types.codec import decode, encode
from polar.types.packed import SharedPrefix, StoredTrajectory, packed, unpacked


def a_trace(prompt: list[int], response: list[int], branch: Any = None) -> Trace:
    return Trace(
        session_id="s1",
        prompt_ids=token_ids(prompt),
        response_ids=token_ids(response),
        loss_mask=loss_mask([1] * len(response)),
        logprobs=logprobs([-1.0] * len(response)),
        spans=(Span("c1", 0, len(response)),),
        metadata={} if branch is None else {"branch": branch},
    )


def a_tree(branch: Any) -> Trajectory:
    traces = (a_trace([1, 2], [3, 4]), a_trace([1, 2, 3, 9], [5], branch))
    return Trajectory("s1", "tree", traces, builder_version="1")


def test_a_beginning_may_reach_into_the_response_of_the_other() -> None:
    tree = a_tree({"trace": 0, "tokens": 3})
    stored = decode(packed(tree), StoredTrajectory)
    assert list(stored.traces[1].prompt_ids) == [9]
    assert stored.traces[1].begins == SharedPrefix(0, 3)
    assert unpacked(packed(tree)) == tree


@pytest.mark.parametrize(
    "branch",
    [
        {"trace": 0, "tokens": 4},
        {"trace": 1, "tokens": 2},
        {"trace": -1, "tokens": 2},
        {"trace": 7, "tokens": 2},
        {"trace": "0", "tokens": 2},
        {"tokens": 2},
        [0, 2],
        "here",
    ],
)
def test_what_is_not_true_is_kept_whole(branch: Any) -> None:
    tree = a_tree(branch)
    assert decode(packed(tree), StoredTrajectory).traces[1].begins is None
    assert unpacked(packed(tree)) == tree


@pytest.mark.parametrize("branch", [{"trace": 0, "tokens": -5}, {"trace": 0, "tokens": 0}])
def test_nothing_shared_is_nothing_cut(branch: Any) -> None:
    assert unpacked(packed(a_tree(branch))) == a_tree(branch)


def test_a_trajectory_without_branches_has_the_plain_form() -> None:
    plain = Trajectory("s1", "per_request", (a_trace([1], [2]),))
    assert packed(plain) == encode(plain)


@pytest.mark.parametrize(
    "begins",
    [SharedPrefix(1, 2), SharedPrefix(-1, 2), SharedPrefix(5, 2), SharedPrefix(0, 99), SharedPrefix(0, -1)],
)
def test_a_beginning_that_is_nowhere_is_damage(tmp_path: Path, begins: SharedPrefix) -> None:
    path = tmp_path / "traces.msgpack"
    write_trajectory(path, a_tree({"trace": 0, "tokens": 3}))
    stored = decode(path.read_bytes(), StoredTrajectory)
    altered = msgspec.structs.replace(stored.traces[1], begins=begins)
    path.write_bytes(encode(msgspec.structs.replace(stored, traces=(stored.traces[0], altered))))
    with pytest.raises(TrajectoryUnreadable, match="damaged: trace"):
        read_trajectory(path)


def test_a_trace_that_would_lie_refuses_also_in_this_form(tmp_path: Path) -> None:
    path = tmp_path / "traces.msgpack"
    write_trajectory(path, a_tree({"trace": 0, "tokens": 3}))
    stored = decode(path.read_bytes(), StoredTrajectory)
    altered = msgspec.structs.replace(stored.traces[1], loss_mask=loss_mask([1, 1]))
    path.write_bytes(encode(msgspec.structs.replace(stored, traces=(stored.traces[0], altered))))
    with pytest.raises(TrajectoryUnreadable, match="1 response ids, but 2 mask bits"):
        read_trajectory(path)
