"""`polar rm` as a user meets it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from polar.node.leftovers import claim
from polar.runs.remove import RetentionRule
from polar.runtimes.host.processes import owner_scope
from polar.store.paths import RunPaths

Polar = Callable[..., Result]
NAMES = ["20261101-000000-aaaa", "20261110-000000-bbbb", "20261115-000000-cccc"]
DAY_S = 86400.0


@pytest.fixture
def runs(a_run: Callable[[str], RunPaths], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunPaths]:
    """Three runs, 14, 5 and 0 days old."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    made = [a_run(name) for name in NAMES]
    for run, days in zip(made, (14, 5, 0), strict=True):
        at = time.time() - days * DAY_S
        for path in (run.record, run.journal):
            os.utime(path, (at, at))
    return made


def left(runs: list[RunPaths]) -> list[str]:
    return [run.run_id[-4:] for run in runs if run.root.exists()]


def test_a_named_run_goes_whole_and_the_others_stay(runs: list[RunPaths], polar: Polar) -> None:
    result = polar("rm", "20261110", "--yes")
    assert (result.exit_code, left(runs)) == (0, ["aaaa", "cccc"])
    assert "removed 1 run, " in result.stdout and "MB freed" in result.stdout


def test_a_dry_run_and_a_pipe_without_yes_remove_nothing(runs: list[RunPaths], polar: Polar) -> None:
    assert polar("rm", NAMES[0], "--dry-run").exit_code == 0
    asked = polar("rm", NAMES[0])
    assert asked.exit_code == 2 and "--yes" in asked.stderr
    assert len(left(runs)) == 3


@pytest.mark.parametrize(
    ("rule", "stay"),
    [
        (["--older-than", "7d"], ["bbbb", "cccc"]),
        (["--older-than", "24h"], ["cccc"]),
        (["--keep", "1"], ["cccc"]),
        (["--keep", "0"], []),
        (["--keep", "1", "--older-than", "7d"], ["bbbb", "cccc"]),
        (["--keep", "5"], ["aaaa", "bbbb", "cccc"]),
    ],
)
def test_a_rule_removes_what_it_does_not_keep(
    runs: list[RunPaths], polar: Polar, rule: list[str], stay: list[str]
) -> None:
    report = json.loads(polar("rm", *rule, "--yes", "--json").stdout)
    assert left(runs) == stay
    assert len(report["removed"]) == 3 - len(stay) and report["problems"] == {}
    assert (report["freed_bytes"] > 0) == (len(stay) < 3)


def test_a_live_run_is_refused_and_then_none_is_removed(runs: list[RunPaths], polar: Polar) -> None:
    claim(runs[1])
    result = polar("rm", *NAMES, "--yes")
    assert result.exit_code == 2 and f"process {os.getpid()}): end it first" in result.stderr
    assert len(left(runs)) == 3


@pytest.mark.parametrize("inner", ["nodes/gateway-1", "rescores/20261116-000000-0000"])
def test_a_run_in_which_something_works_is_live(runs: list[RunPaths], polar: Polar, inner: str) -> None:
    folder = RunPaths(runs[0].root / inner)
    folder.root.mkdir(parents=True)
    claim(folder)
    assert polar("rm", NAMES[0], "--yes").exit_code == 2
    assert polar("rm", "--keep", "0", "--yes").exit_code == 0
    assert left(runs) == ["aaaa"]


def test_a_mark_of_another_machine_is_refused_with_the_way_out(runs: list[RunPaths], polar: Polar) -> None:
    runs[0].owner.write_text("another-boot.1 12.3\n")
    result = polar("rm", NAMES[0], "--yes")
    assert result.exit_code == 2 and f"remove {runs[0].owner}" in result.stderr.replace("\n", " ")


def test_a_killed_run_can_be_removed(runs: list[RunPaths], polar: Polar) -> None:
    runs[0].owner.write_text(f"{owner_scope()} 999999.1\n")
    assert polar("rm", NAMES[0], "--yes").exit_code == 0
    assert left(runs) == ["bbbb", "cccc"]


@pytest.mark.parametrize("words", [[], [NAMES[0], "--keep", "1"], ["--older-than", "soon"], ["nope"]])
def test_what_cannot_be_meant_is_refused(runs: list[RunPaths], polar: Polar, words: list[str]) -> None:
    result = polar("rm", *words, "--yes")
    assert result.exit_code == 2 and "Traceback" not in result.output
    assert len(left(runs)) == 3


def test_live_runs_count_among_the_newest(runs: list[RunPaths]) -> None:
    claim(runs[2])
    assert RetentionRule(keep=1).lets_go(runs) == runs[:2]
    claim(runs[0])
    assert RetentionRule(keep=1).lets_go(runs) == [runs[1]]
