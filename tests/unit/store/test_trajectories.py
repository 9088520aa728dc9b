"""A trajectory file is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.errors import PolarError
from polar.store.trajectories import TrajectoryUnreadable, read_trajectory, write_trajectory
from polar.types import Break, Dropped, Span, Trace, Trajectory, logprobs, loss_mask, token_ids
from polar.types.codec import encode


def a_trajectory() -> Trajectory:
    trace = Trace(
        session_id="add-0",
        prompt_ids=token_ids([1, 2]),
        response_ids=token_ids([3, 4, 5]),
        loss_mask=loss_mask([1, 0, 1]),
        logprobs=logprobs([-0.5, 0.0, -1.25]),
        spans=(Span("c1", 0, 1), Span("c2", 2, 1, "step-3")),
        reward=1.0,
    )
    return Trajectory(
        session_id="add-0",
        builder="prefix_merging",
        traces=(trace,),
        dropped=(Dropped("c3", 0, 4, "not received"),),
        breaks=(Break("c2", "c1", "edited history"),),
        statistics={"calls": 3},
    )


def test_a_trajectory_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "add-0" / "traces.msgpack"
    write_trajectory(path, a_trajectory())
    assert read_trajectory(path) == a_trajectory()
    assert [p.name for p in path.parent.iterdir()] == ["traces.msgpack"]


def test_writing_again_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "traces.msgpack"
    write_trajectory(path, a_trajectory())
    write_trajectory(path, Trajectory(session_id="add-0", builder="per_request"))
    assert read_trajectory(path).builder == "per_request"


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrajectoryUnreadable, match="No such file"):
        read_trajectory(tmp_path / "traces.msgpack")


def test_a_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolarError, match="cannot write"):
        write_trajectory(tmp_path / "file" / "traces.msgpack", a_trajectory())


@pytest.mark.parametrize("cut", [0, 1, 40, -1])
def test_a_file_cut_short_is_a_clear_error(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "traces.msgpack"
    path.write_bytes(encode(a_trajectory())[:cut])
    with pytest.raises(TrajectoryUnreadable, match="damaged"):
        read_trajectory(path)


@pytest.mark.parametrize("garbage", [b"\xc1", b"\x01", b"\xc7\x03\x01abc", b"\xd4\x63a", b"[]"])
def test_a_file_of_something_else_is_a_clear_error(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "traces.msgpack"
    path.write_bytes(garbage)
    with pytest.raises(TrajectoryUnreadable, match="damaged"):
        read_trajectory(path)


def test_a_trace_that_lies_cannot_be_read_in(tmp_path: Path) -> None:
    """One logprob is made positive in the file: the trace refuses to exist."""
    path = tmp_path / "traces.msgpack"
    write_trajectory(path, a_trajectory())
    blob = path.read_bytes()
    minus_half, plus_half = logprobs([-0.5]).tobytes(), logprobs([0.5]).tobytes()
    assert blob.count(minus_half) == 1
    path.write_bytes(blob.replace(minus_half, plus_half))
    with pytest.raises(TrajectoryUnreadable, match=r"logprob 0\.5"):
        read_trajectory(path)
