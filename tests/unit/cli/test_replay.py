"""`polar replay`: the same calls, built again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from typer.testing import Result

from polar.store.paths import RunPaths
from polar.store.trajectories import read_trajectory
from polar.types import Call, Strict, Trajectory

Polar = Callable[..., Result]


class Counting:
    """A builder of the user's own that only counts."""

    class Options(Strict):
        factor: int = 1
        label: str = ""

    def __init__(self, options: Options) -> None:
        self._options = options

    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        if self._options.label == "break":
            raise ValueError("cannot count these")
        return Trajectory(session_id, "counting", statistics={"calls": len(calls) * self._options.factor})


COUNTING = f"{__name__}:Counting"


def test_the_same_builder_gives_what_is_stored(run: RunPaths, polar: Polar) -> None:
    report = json.loads(polar("replay", "add-0", "--json").stdout)
    assert report["builder"]["name"] == "prefix_merging"
    assert report["rebuilt"] == report["stored"]
    assert report["traces"] == [{"kind": "agent", "prompt_tokens": 5, "response_tokens": 9, "trainable_tokens": 4}]


def test_another_builder_is_shown_beside_what_is_stored(run: RunPaths, polar: Polar) -> None:
    result = polar("replay", "add-0", "--builder", "per_request")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["traces", "1", "2"] in rows
    assert ["trainable", "tokens", "4", "4"] in rows
    assert ["0", "agent", "5", "3", "2"] in rows
    assert ["1", "agent", "12", "2", "2"] in rows


def test_a_builder_of_the_users_own_takes_options(run: RunPaths, polar: Polar) -> None:
    arguments = ["replay", "add-0", "--builder", COUNTING, "--option", "factor=10", "--option", "label=a=b"]
    report = json.loads(polar(*arguments, "--json").stdout)
    assert report["builder"]["options"] == {"factor": 10, "label": "a=b"}
    assert report["rebuilt"] == {"calls": 30}


def test_nothing_is_written_unless_asked_and_never_over_the_original(run: RunPaths, polar: Polar) -> None:
    folder = run.session("add-0").root
    original = run.session("add-0").traces.read_bytes()
    polar("replay", "add-0", "--builder", "per_request")
    assert [path.name for path in folder.iterdir()] == ["traces.msgpack"]
    polar("replay", "add-0", "--builder", "per_request", "--save")
    result = polar("replay", "add-0", "--builder", COUNTING, "--save")
    assert len(read_trajectory(folder / "traces.per_request.msgpack").traces) == 2
    assert len(list(folder.iterdir())) == 3
    assert "saved to" in result.stdout
    assert run.session("add-0").traces.read_bytes() == original


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--builder", "nope"], "unknown builder 'nope'; known: per_request, prefix_merging"),
        (["--builder", COUNTING, "--option", "factor=many"], "factor: Input should be a valid integer"),
        (["--builder", COUNTING, "--option", "colour=red"], "colour: Extra inputs"),
        (["--builder", COUNTING, "--option", "label=break"], "builder: cannot count these"),
        (["--option", "factor"], "'factor' is not key=value"),
    ],
)
def test_what_cannot_be_built_is_refused(run: RunPaths, polar: Polar, arguments: list[str], message: str) -> None:
    result = polar("replay", "add-0", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_a_session_without_calls_builds_to_nothing(run: RunPaths, polar: Polar) -> None:
    report = json.loads(polar("replay", "add-1", "--json").stdout)
    assert report["traces"] == []
    assert report["rebuilt"]["calls"] == 0
