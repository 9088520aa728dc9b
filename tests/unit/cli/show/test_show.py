"""`polar show`: one session's walk, verdict and tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from typer.testing import Result

from polar.cli.show.tokens import runs_of
from polar.store.paths import RunPaths
from polar.types import Span, Trace, logprobs, loss_mask, token_ids

Polar = Callable[..., Result]


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [re.sub(r" {2,}", " | ", line.strip()) for line in result.stdout.splitlines()]


def test_the_walk_shows_each_step_with_its_time(run: RunPaths, polar: Polar) -> None:
    lines = lines_of(polar("show", "add-0"))
    start = lines.index(next(line for line in lines if line.startswith("from 2026-11-15 05:12:33")))
    assert lines[start + 2 : start + 11] == [
        "0.000 s | 0.250 s | QUEUED",
        "0.250 s | 0.750 s | INIT",
        "1.000 s | 0.500 s | READY",
        "1.500 s | 2.500 s | RUNNING",
        "2.000 s | 0.500 s | call 1.1 | 5 | 5 | 3 | stop | agent | starts",
        "2.000 s | 0.500 s | call 1.3 | 7 | 5 | 2 | stop | agent | "
        "starts, break: edited_history, 2 lone surrogates as U+FFFD, not received",
        "3.000 s | 0.250 s | call 1.2 | 12 | 5 | 2 | stop | agent | continues 1.1",
        "4.000 s | 0.500 s | POSTRUN",
        "4.500 s | - | COMPLETED",
    ]


def test_the_verdict_comes_with_its_reasons(run: RunPaths, polar: Polar) -> None:
    lines = lines_of(polar("show", "add-0"))
    assert "reward 1.000 | passed 2" in lines
    assert "both tests pass" in lines
    assert any("7 sampled tokens: 4 trainable, 3 dropped" in line for line in lines)
    assert any(line.startswith("dropped: ") and "not_received 2" in line for line in lines)
    assert "0 | agent | 5 | 9 | 4 | 2 | 1.000" in lines


def test_a_failure_is_named_and_cannot_paint_the_terminal(run: RunPaths, polar: Polar) -> None:
    result = polar("show", "add-1")
    assert "failed in init (infrastructure): RuntimeFailure: no space\nleft [red]␛[31m" in result.stdout
    assert "no traces" in result.stdout
    assert "nothing is recorded yet" in result.stdout
    assert "\x1b" not in result.stdout


def test_tokens_are_bracketed_where_there_is_no_colour(run: RunPaths, polar: Polar) -> None:
    shown = polar("show", "add-0", "--tokens").stdout
    assert "⟦sampled, trainable⟧" in shown, "a legend"
    assert "trace 0: 4 of 9 tokens trainable\n<hi>⏎\n⟦a⟧⟨b⟩⟦␛⟧<ok>⟦de⟧\n" in shown


def test_tokens_are_coloured_on_a_terminal(run: RunPaths, polar: Polar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = polar("show", "add-0", "--tokens").stdout
    assert "\x1b[1;32mde\x1b[0m" in shown
    assert "⟦" not in shown


def test_json_holds_the_whole_session(run: RunPaths, polar: Polar) -> None:
    shown = json.loads(polar("show", "add-0", "--json").stdout)
    assert shown["run_id"] == run.run_id
    assert shown["session"]["stage"] == "COMPLETED"
    assert shown["task"]["instruction"] == "add 2\nand 2"
    assert [(step["stage"], step["took_s"]) for step in shown["stages"]][-2:] == [
        ("POSTRUN", 0.5),
        ("COMPLETED", None),
    ]
    assert [call["call_id"] for call in shown["calls"]] == ["add-0.1.1", "add-0.1.2", "add-0.1.3"]
    assert shown["calls"][1]["parent_id"] == "add-0.1.1"
    assert shown["calls"][2]["break_reason"] == "edited_history"
    assert [call["lone_surrogates"] for call in shown["calls"]] == [0, 0, 2]
    assert shown["result"]["score"]["reward"] == 1.0
    [trace] = shown["traces"]
    assert (trace["prompt_tokens"], trace["response_tokens"], trace["trainable_tokens"]) == (5, 9, 4)
    assert "response_ids" not in trace


def test_json_with_tokens_holds_the_arrays(run: RunPaths, polar: Polar) -> None:
    [trace] = json.loads(polar("show", "add-0", "--json", "--tokens").stdout)["traces"]
    assert trace["loss_mask"] == [1, 0, 1, 0, 0, 0, 0, 1, 1]
    assert trace["response_ids"][:2] == [ord("a"), ord("b")]
    assert trace["logprobs"] == [-0.5, 0, -0.5, 0, 0, 0, 0, -0.5, -0.5]


def test_the_latest_run_that_holds_the_session_is_taken(
    run: RunPaths, a_run: Callable[[str], RunPaths], polar: Polar
) -> None:
    later = a_run("20261116-000000-0000")
    assert json.loads(polar("show", "add-0", "--json").stdout)["run_id"] == later.run_id
    assert json.loads(polar("show", "add-0", "--run", run.run_id[:8], "--json").stdout)["run_id"] == run.run_id


def test_a_later_run_that_never_began_is_passed_over(run: RunPaths, polar: Polar) -> None:
    later = RunPaths.create(run.root.parent, "20261116-000000-0000")
    later.write_record(run.read_record().model_copy(update={"run_id": later.run_id}))
    assert json.loads(polar("show", "add-0", "--json").stdout)["run_id"] == run.run_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add-9"], "no session 'add-9' in any run"),
        (["dad-0"], "did you mean 'add-0'? `polar ls RUN` lists"),
        (["add-9", "--run", "2026"], "no session 'add-9' in run 20261115-051233-ab12"),
        (["add"], "2 sessions of run 20261115-051233-ab12 begin with 'add': add-0, add-1"),
        (["add-0", "--run", "x"], "no run 'x'"),
    ],
)
def test_what_is_not_one_session_is_refused(
    run: RunPaths, polar: Polar, arguments: list[str], message: str
) -> None:
    result = polar("show", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_damaged_traces_are_refused_by_name(run: RunPaths, polar: Polar) -> None:
    run.session("add-0").traces.write_bytes(b"\xc1")
    result = polar("show", "add-0")
    assert result.exit_code == 2
    assert "traces.msgpack are damaged" in result.stderr


def test_a_trace_is_cut_where_the_role_of_its_tokens_changes() -> None:
    trace = Trace(
        session_id="s",
        prompt_ids=token_ids([1, 2]),
        response_ids=token_ids([3, 4, 5, 6]),
        loss_mask=loss_mask([1, 0, 0, 1]),
        logprobs=logprobs([-1.0, 0.0, 0.0, -1.0]),
        spans=(Span("c1", 0, 2), Span("c2", 3, 1)),
    )
    assert [(role, list(ids)) for role, ids in runs_of(trace)] == [
        ("context", [1, 2]),
        ("trainable", [3]),
        ("sampled", [4]),
        ("context", [5]),
        ("trainable", [6]),
    ]
