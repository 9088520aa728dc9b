"""`polar ls`: runs and sessions at a glance."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from polar.node.leftovers import claim
from polar.runtimes.host.processes import owner_scope
from polar.store.paths import RunPaths

Polar = Callable[..., Result]


def test_runs_are_listed_with_their_stages_and_mean_reward(run: RunPaths, polar: Polar) -> None:
    [header, row] = polar("ls").stdout.splitlines()
    assert header.split() == ["run", "started", "took", "tasks", "sessions", "reward"]
    assert row.split() == [
        run.run_id, *["2026-11-15", "05:12:33"], "5.000", "s", "1", "COMPLETED", "1", "FAILED", "1,",
        *["1", "left", "out", "of", "the", "mean"], "1.000",
    ]  # fmt: skip


def test_runs_as_json(run: RunPaths, polar: Polar) -> None:
    [row] = json.loads(polar("ls", "--json").stdout)["runs"]
    assert row["run_id"] == run.run_id
    assert row["stages"] == {"COMPLETED": 1, "FAILED": 1}
    assert (row["tasks"], row["mean_reward"], row["problem"]) == (1, 1.0, None)
    assert row["finished"] - row["started"] == 5.0


def test_in_a_narrow_terminal_what_matters_stays_whole(
    run: RunPaths, polar: Polar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = polar("ls").stdout.splitlines()[1].split()
    assert (words[0], words[-1]) == (run.run_id, "1.000")


class TestStates:
    """A killed run is told from one that goes on."""

    def state(self, polar: Polar) -> str:
        [row] = json.loads(polar("ls", "--json").stdout)["runs"]
        assert row["state"] in polar("ls").stdout
        return row["state"]

    def reopen(self, run: RunPaths, **changes: Any) -> None:
        run.write_record(run.read_record().model_copy(update=changes))

    def test_a_run_whose_process_lives_is_running(self, run: RunPaths, polar: Polar) -> None:
        self.reopen(run, finished=None)
        claim(run)
        assert self.state(polar) == "running"

    def test_a_run_whose_process_is_dead_was_killed(self, run: RunPaths, polar: Polar) -> None:
        self.reopen(run, finished=None)
        run.owner.write_text(f"{owner_scope()} 999999.1\n")
        assert self.state(polar) == "killed"
        run.owner.unlink()  # as the next start does
        assert self.state(polar) == "killed"

    def test_ctrl_c_and_errors_interrupt_a_run(self, run: RunPaths, polar: Polar) -> None:
        self.reopen(run, interrupted=True)
        assert self.state(polar) == "interrupted"

    def test_a_process_of_another_machine_cannot_be_seen(self, run: RunPaths, polar: Polar) -> None:
        self.reopen(run, finished=None)
        run.owner.write_text("another-boot.4026531836 1234.5\n")
        assert self.state(polar) == "elsewhere"


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(
    run: RunPaths, a_run: Callable[[str], RunPaths], polar: Polar
) -> None:
    a_run("20261116-000000-0000").record.write_text("{}")
    a_run("20261117-000000-0000").journal.write_bytes(b"garbage" * 1000)
    whole, no_record, no_journal = json.loads(polar("ls", "--json").stdout)["runs"]
    assert whole["problem"] is None
    assert "run.json is not of this version" in no_record["problem"]
    assert "not a database" in no_journal["problem"]
    assert "not a database" in polar("ls").stdout


def test_the_sessions_of_a_run(run: RunPaths, polar: Polar) -> None:
    result = polar("ls", run.run_id[:8])
    header, first, second = result.stdout.splitlines()
    assert header.split()[:5] == ["session", "stage", "reward", "calls", "traces"]
    assert first.split() == ["add-0", "COMPLETED", "1.000", "3", "1", "4", first.split()[-1]]
    assert second.split()[:4] == ["add-1", "FAILED", "-", "0"]
    assert second.rstrip().endswith("init: no space left [red]␛[31m"), "harmless, on one line"


def test_sessions_as_json(run: RunPaths, polar: Polar) -> None:
    listed = json.loads(polar("ls", run.run_id, "--json").stdout)
    assert listed["run_id"] == run.run_id
    first, second = listed["sessions"]
    assert (first["session_id"], first["stage"], first["reward"]) == ("add-0", "COMPLETED", 1.0)
    assert (first["calls"], first["sampled_tokens"], first["trainable_tokens"]) == (3, 7, 4)
    assert first["failure"] is None
    assert second["failure"]["where"] == "init"
    assert second["reward"] is None


def test_no_runs_is_no_error(polar: Polar) -> None:
    result = polar("ls")
    assert result.exit_code == 0
    assert "polar run" in result.stdout
    assert json.loads(polar("ls", "--json").stdout) == {"runs": []}


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_an_unknown_run_is_refused_with_the_known_ones(run: RunPaths, polar: Polar, extra: list[str]) -> None:
    result = polar("ls", "nope", *extra)
    assert (result.exit_code, result.stdout) == (2, "")
    assert run.run_id in result.stderr
