"""A heavy harness on the light model: Claude Code with its bare prompt, which fits the embedded model's window."""

from __future__ import annotations

from pathlib import Path

from exactly_once import assert_exactly_once
from real_run import calls_of, polar_run

from polar.store.trajectories import read_trajectory

TASKS = """
[[tasks]]
task_id = "bare"
num_samples = 4
instruction = "Write the word hello into the file answer.txt."
harness = { name = "claude_code", options = { bare = true } }
evaluator = { name = "test_on_output", options = { command = "cat answer.txt", expect_pattern = '^hello$' } }
sampling = { max_tokens = 96 }
budgets = { run_s = 200, max_calls = 4 }
"""


def test_it_runs_freely_and_every_token_stands_once(tmp_path: Path) -> None:
    (tmp_path / "tasks.toml").write_text(TASKS)
    run = polar_run(tmp_path, tmp_path / "tasks.toml")
    assert len(run["results"]) == 4
    for result in run["results"]:
        assert result["stage"] == "COMPLETED" or result["failure"]["policy"], result
        calls = calls_of(run, result["session_id"])
        assert calls and {call.dialect for call in calls} == {"anthropic"}
        assert_exactly_once(calls, read_trajectory(run["root"] / result["traces"]))
        assert result["statistics"]["merge_rate"] in (None, 1.0)
