"""`polar replay`: the same calls, built again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest
from typer.testing import Result

from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.store.trajectories import read_trajectory
from polar.types import Call, Message, Strict, Trajectory

from ..conftest import a_call, the_calls

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
    (trace,) = report["traces"]
    assert trace == {
        "kind": "agent",
        "prompt_tokens": 5,
        "response_tokens": 9,
        "trainable_tokens": 4,
        "context_exact": True,
    }


def test_another_builder_is_shown_beside_what_is_stored(run: RunPaths, polar: Polar) -> None:
    result = polar("replay", "add-0", "--builder", "per_request")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["traces", "1", "2", "+1"] in rows
    assert ["trainable", "tokens", "4", "4"] in rows
    assert ["0", "agent", "5", "3", "2", "yes"] in rows
    assert ["1", "agent", "12", "2", "2", "yes"] in rows


def test_a_builder_of_the_users_own_takes_options(run: RunPaths, polar: Polar) -> None:
    arguments = ["replay", "add-0", "--builder", COUNTING, "--option", "factor=10", "--option", "label=a=b"]
    report = json.loads(polar(*arguments, "--json").stdout)
    assert report["builder"]["options"] == {"factor": 10, "label": "a=b"}
    assert report["rebuilt"] == {"calls": 30}


@pytest.fixture
def drifted(run: RunPaths) -> RunPaths:
    """A fourth call that follows the second, whose reply `de` the engine laid out as `d+e`."""
    (_, second, _) = the_calls()
    echo = Message(role="assistant", content="de")
    prompt = "<hi>\nab\x1b<ok>d+e<so>"
    call = a_call(
        "4",
        prompt,
        "fg",
        parent_id=second.call_id,
        break_reason="retokenised",
        new_messages=(echo, Message(role="user", content="so")),
    )

    async def add() -> None:
        async with await Journal.open(run.journal) as journal:
            await journal.append_call(call)

    asyncio.run(add())
    return run


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        (
            "fork",
            [
                ["traces", "1", "2", "+1"],
                ["breaks", "edited_history", "1", "edited_history", "1,", "retokenised", "1"],
            ],
        ),
        (
            "heal",
            [
                ["traces", "1", "1"],
                ["trainable", "tokens", "4", "5", "+1"],
                ["dropped", "tokens", "3", "4", "+1"],
                ["inexact", "traces", "0", "0"],
                ["0", "agent", "5", "16", "5", "yes"],
            ],
        ),
        (
            "splice",
            [
                ["traces", "1", "1"],
                ["trainable", "tokens", "4", "6", "+2"],
                ["dropped", "tokens", "3", "3"],
                ["inexact", "traces", "0", "1", "+1"],
                ["0", "agent", "5", "15", "6", "no"],
            ],
        ),
    ],
)
def test_a_rule_for_drift_can_be_chosen_and_its_price_is_shown(
    drifted: RunPaths, polar: Polar, rule: str, rows: list[list[str]]
) -> None:
    result = polar("replay", "add-0", "--option", f"drift={rule}")
    shown = [line.split() for line in result.stdout.splitlines()]
    assert [row for row in rows if row not in shown] == []
    assert f"builder prefix_merging drift={rule}" in result.stdout


def test_what_was_healed_is_named_among_breaks_and_drops(drifted: RunPaths, polar: Polar) -> None:
    report = json.loads(polar("replay", "add-0", "--option", "drift=heal", "--json").stdout)
    assert report["rebuilt"]["breaks"] == {"edited_history": 1, "retokenised (healed)": 1}
    assert report["rebuilt"]["dropped"] == {"missing_logprob": 1, "healed": 1, "not_received": 2}


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
    polar("replay", "add-0", "--option", "drift=heal", "--save")
    assert read_trajectory(folder / "traces.prefix_merging.drift-heal.msgpack").builder_version == "2 heal"
    assert run.session("add-0").traces.read_bytes() == original


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--builder", "nope"], "unknown builder 'nope'; known: per_request, prefix_merging"),
        (["--builder", COUNTING, "--option", "factor=many"], "factor: input should be a valid integer"),
        (["--builder", COUNTING, "--option", "colour=red"], "builder.options.colour: unknown option"),
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
