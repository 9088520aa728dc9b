"""Preference pairs: sessions of one group, the same first prompt, different rewards."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

from exported_sessions import (
    LAST,
    PROMPT,
    REPLY,
    RESULT,
    a_call,
    a_group,
    a_session,
    exported,
    lines,
    two_turns,
)
from polar.data.export.plan import ExportPlan
from polar.types import Call, CallTimes

CHAT, TOKENS = ExportPlan("sft", pairs=True), ExportPlan("tokens", pairs=True)


def with_prompt(ids: list[int]) -> list[Call]:
    return [a_call("first", ids, ids, [10, 11])]


def test_the_better_is_chosen_and_the_worse_rejected_in_chat_form(tmp_path: Path) -> None:
    worse = a_call("worse", PROMPT, PROMPT, [20], new_messages=two_turns()[0].new_messages)
    exported(tmp_path / "set", CHAT, a_group(a_session("t-0", 0.0, [worse]), a_session("t-1", 1.0)))
    (row,) = lines(tmp_path / "set")
    assert row["prompt"] == [{"role": "user", "content": "to first"}]
    assert [message["role"] for message in row["chosen"]] == ["assistant", "tool", "assistant"]
    assert [message["content"] for message in row["rejected"]] == ["reply of worse"]
    assert (row["chosen_session_id"], row["rejected_session_id"]) == ("t-1", "t-0")
    assert (row["chosen_reward"], row["rejected_reward"]) == (1.0, 0.0)
    assert row["tools"][0]["function"]["name"] == "bash"


def test_pairs_as_tokens_keep_the_mask(tmp_path: Path) -> None:
    group = a_group(a_session("t-0", 0.0, two_turns([21])), a_session("t-1", 1.0))
    exported(tmp_path / "set", TOKENS, group)
    (row,) = lines(tmp_path / "set")
    assert row["prompt_ids"] == PROMPT
    assert row["chosen_ids"] == [*REPLY, *RESULT, *LAST] and row["rejected_ids"] == [*REPLY, *RESULT, 21]
    assert row["chosen_labels"] == [*REPLY, -100, -100, *LAST]
    assert row["rejected_labels"] == [*REPLY, -100, -100, 21]
    exported(tmp_path / "parquet", ExportPlan("tokens", pairs=True, file="parquet"), group)
    assert pyarrow.parquet.read_table(tmp_path / "parquet/data").to_pylist() == [row]


def test_the_best_goes_with_the_worst_and_each_session_is_used_once(tmp_path: Path) -> None:
    rewards = [0.5, 1.0, 0.0, 0.5, 0.75]
    group = a_group(*(a_session(f"t-{n}", reward) for n, reward in enumerate(rewards)))
    exported(tmp_path / "set", TOKENS, group)
    found = [(row["chosen_session_id"], row["rejected_session_id"]) for row in lines(tmp_path / "set")]
    assert found == [("t-1", "t-2"), ("t-4", "t-3")]


def test_a_group_without_contrast_gives_no_pair_and_is_counted(tmp_path: Path) -> None:
    groups = [a_group(a_session(f"{name}-0", 1.0), a_session(f"{name}-1", 1.0)) for name in "ab"]
    report = exported(tmp_path / "set", CHAT, *groups)
    assert (report["rows"], report["left_out"]["pairs"]) == (0, {"no_contrast": 2})


def test_other_first_prompts_are_not_compared(tmp_path: Path) -> None:
    """As when a harness puts the time into its system prompt."""
    group = a_group(a_session("t-0", 1.0, with_prompt([1])), a_session("t-1", 0.0, with_prompt([2])))
    report = exported(tmp_path / "set", CHAT, group)
    assert (report["rows"], report["left_out"]["pairs"]) == (0, {"first_prompt_differs": 1})


def test_a_session_of_several_agent_traces_is_in_no_pair(tmp_path: Path) -> None:
    """One of its traces is not the whole way to its reward."""
    after = a_call("after", [40, 41], [40, 41], [42], times=CallTimes(9.0, 9.0, 10.0))
    split = a_session("t-0", 0.0, [*two_turns(), after])
    report = exported(tmp_path / "set", CHAT, a_group(split, a_session("t-1", 1.0)))
    assert report["rows"] == 0
    assert report["left_out"]["pairs"] == {"several_agent_traces": 1, "no_contrast": 1}


def test_a_sub_agent_does_not_keep_a_session_from_a_pair(tmp_path: Path) -> None:
    helper = a_call("helper", [7, 8], [7, 8], [15], kind="subagent")
    group = a_group(a_session("t-0", 0.0, [two_turns()[0], helper]), a_session("t-1", 1.0))
    assert exported(tmp_path / "set", TOKENS, group)["rows"] == 1


def test_a_bound_holds_for_the_chosen_side(tmp_path: Path) -> None:
    group = a_group(a_session("t-0", 0.0), a_session("t-1", 0.5))
    report = exported(tmp_path / "set", ExportPlan("tokens", pairs=True, min_reward=1.0), group)
    assert (report["rows"], report["left_out"]["pairs"]) == (0, {"below_min_reward": 1})
    assert exported(tmp_path / "half", ExportPlan("tokens", pairs=True, min_reward=0.5), group)["rows"] == 1
