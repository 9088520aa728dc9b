"""`polar rescore`: a before/after table, JSON, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from polar.evaluators.base import Evidence
from polar.runs.stored import read_run
from polar.store.paths import RunPaths
from polar.types import Score

Polar = Callable[..., Result]
HALF = ("--evaluator", f"{__name__}:half")


def half(evidence: Evidence, of: float = 1.0) -> Score:
    return Score(reward=of / 2, reasons=("half of it",))


def broken(evidence: Evidence) -> float:
    raise RuntimeError("cannot judge this")


def test_before_and_after(run: RunPaths, polar: Polar) -> None:
    shown = polar("rescore", *HALF).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["add-0", "1.000", "0.500", "-0.500", "half", "of", "it"] in rows
    assert "1 sessions have a new reward, 1 changed; mean 1.000 before, 0.500 after" in shown
    assert not run.rescores.exists()


def test_json_has_every_session(run: RunPaths, polar: Polar) -> None:
    report = json.loads(polar("rescore", run.run_id, *HALF, "--option", "of=3", "--json").stdout)
    rows = {row["session_id"]: row for row in report["sessions"]}
    assert (rows["add-0"]["before"], rows["add-0"]["after"]) == (1.0, 1.5)
    assert rows["add-0"]["score"]["evaluator"]["options"] == {"of": 3}
    assert rows["add-1"]["after"] is None and rows["add-1"]["skipped"].startswith("it is not judged: ")
    assert (report["scored"], report["changed"], report["skipped"], report["unscored"]) == (1, 1, 1, 0)


def test_written_scores_stand_beside_the_result(run: RunPaths, polar: Polar) -> None:
    shown = polar("rescore", *HALF, "--session", "add-0", "--write").stdout
    assert "the sessions' own results are unchanged" in shown
    session = read_run(run)["add-0"]
    assert session.result and session.result.reward == 1.0
    assert [later.reward for later in session.later_scores] == [0.5]


def test_a_session_without_a_verdict_is_an_exit_code_of_1(run: RunPaths, polar: Polar) -> None:
    result = polar("rescore", "--evaluator", f"{__name__}:broken")
    assert result.exit_code == 1
    assert "RuntimeError: cannot judge this" in result.stdout and "1 could not be scored" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--evaluator", "tests"), "unknown evaluator 'tests'; known: "),
        ((*HALF, "--option", "off=1"), "evaluator.options.off: unknown option"),
        ((*HALF, "--option", "of"), "'of' is not key=value"),
        ((*HALF, "--session", "sub"), "no session 'sub' in run"),
    ],
)
def test_wrong_words_are_refused(run: RunPaths, polar: Polar, arguments: tuple[str, ...], problem: str) -> None:
    result = polar("rescore", *arguments)
    assert result.exit_code == 2 and problem in result.stderr
