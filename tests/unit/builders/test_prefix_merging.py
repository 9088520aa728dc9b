"""Token puzzles. `^` marks what is trained on, `.` what is context."""

from __future__ import annotations

import msgspec
import pytest
from conversation import Conversation, breaks, drops, ids, letters, shapes

from polar.builders.drift import DriftOptions
from polar.builders.links import UnsoundCalls
from polar.builders.prefix_merging import PrefixMerging
from polar.errors import ConfigError
from polar.registry import make
from polar.types import Message, Span, Spec, Trajectory


def build(talk: Conversation, **options: object) -> Trajectory:
    return PrefixMerging(DriftOptions.model_validate(options)).build("s1", talk.calls)


def test_a_single_call_is_one_trace() -> None:
    talk = Conversation()
    talk.call("Su", "ab")
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^")]
    assert trajectory.builder == "prefix_merging"
    assert trajectory.breaks == trajectory.dropped == ()


def test_no_calls_are_no_traces() -> None:
    assert build(Conversation()).traces == ()


def test_a_conversation_is_one_trace_in_which_the_harnesss_messages_are_context() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab", policy_version="v1")
    second = talk.call("T", "cd", after=first, policy_version="v2")
    talk.call("Uv", "e", after=second, policy_version="v2")
    (trace,) = build(talk).traces
    assert shapes(build(talk)) == [
        ("Su", "abTcdUve",
               "^^.^^..^"),
    ]  # fmt: skip
    assert trace.spans == (Span("c1", 0, 2, "v1"), Span("c2", 3, 2, "v2"), Span("c3", 7, 1, "v2"))
    assert trace.policy_versions == ("v1", "v2")
    assert trace.metadata == {"calls": ["c1", "c2", "c3"], "trace_index": 0}
    assert trace.context_exact
    assert list(trace.logprobs) == [-0.5, -0.5, 0.0, -0.5, -0.5, 0.0, 0.0, -0.5]


def test_retry_twin_the_reply_that_was_not_received_is_dropped_and_the_chain_continues() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "xx", after=first, received=False)
    again = talk.call("T", "cd", after=first)
    talk.call("U", "e", after=again)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "abTcdUe", "^^.^^.^")]
    assert drops(trajectory) == [("c2", 0, 2, "not_received")]
    assert trajectory.breaks == ()


def test_retry_twin_of_a_first_call() -> None:
    talk = Conversation()
    talk.call("Su", "xx", received=False)
    again = talk.call("Su", "ab")
    talk.call("T", "c", after=again)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "abTc", "^^.^")]
    assert drops(trajectory) == [("c1", 0, 2, "not_received")]


def test_a_second_sample_on_purpose_is_a_sibling_of_its_own() -> None:
    """The task says so: `superseded = "keep"`. What else becomes of it is in test_superseded.py."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first)
    talk.call("T", "ef", after=first)
    trajectory = PrefixMerging(DriftOptions(superseded="keep")).build("s1", talk.calls)
    assert shapes(trajectory) == [
        ("Su", "abTcd", "^^.^^"),
        ("SuabT", "ef", "^^"),
    ]
    assert breaks(trajectory) == [("c3", "c1", "fork")]


def test_compaction_appended_to_the_history_extends_it_and_the_summary_starts_anew() -> None:
    talk = Conversation()
    work = talk.call("Su", "ab")
    compaction = talk.call("Z", "sum", after=work, kind="compaction")
    talk.call("Ssum", "cd", after=compaction, continues=False, break_reason="history_replaced")
    trajectory = build(talk)
    assert shapes(trajectory) == [
        ("Su", "abZsum", "^^.^^^"),
        ("Ssum", "cd", "^^"),
    ]
    assert breaks(trajectory) == [("c3", "c2", "history_replaced")]
    assert [trace.kind for trace in trajectory.traces] == ["agent", "agent"]


def test_parallel_sub_agents_are_traces_of_their_own() -> None:
    talk = Conversation()
    main = talk.call("Su", "ab")
    left = talk.call("Lq", "l", kind="subagent")
    right = talk.call("Rq", "r", kind="subagent")
    talk.call("1", "m", after=left, kind="subagent")
    talk.call("2", "s", after=right, kind="subagent")
    talk.call("T", "cd", after=main)
    trajectory = build(talk)
    assert shapes(trajectory) == [
        ("Su", "abTcd", "^^.^^"),
        ("Lq", "l1m", "^.^"),
        ("Rq", "r2s", "^.^"),
    ]
    assert [trace.kind for trace in trajectory.traces] == ["agent", "subagent", "subagent"]
    assert trajectory.breaks == ()


def test_a_sub_agent_seeded_with_the_history_does_not_carry_the_agents_chain_away() -> None:
    talk = Conversation()
    main = talk.call("Su", "ab")
    seeded = talk.call("Q", "x", after=main, kind="subagent")  # arrives first: the agent waits for it
    talk.call("R", "y", after=seeded, kind="subagent")
    talk.call("T", "cd", after=main)
    trajectory = build(talk)
    assert shapes(trajectory) == [
        ("Su", "abTcd", "^^.^^"),
        ("SuabQ", "xRy", "^.^"),
    ]
    assert [trace.kind for trace in trajectory.traces] == ["agent", "subagent"]


def test_a_fork_trains_shared_tokens_once_and_the_earliest_child_goes_on() -> None:
    talk = Conversation()
    root = talk.call("Su", "ab")
    left = talk.call("T", "c", after=root)
    right = talk.call("U", "d", after=root)
    talk.call("X", "f", after=right)
    talk.call("V", "e", after=left)
    trajectory = build(talk)
    assert shapes(trajectory) == [
        ("Su", "abTcVe", "^^.^.^"),
        ("SuabU", "dXf", "^.^"),
    ]
    assert [trace.metadata["trace_index"] for trace in trajectory.traces] == [0, 1]


def test_a_fork_within_a_fork_carries_its_whole_context_as_prompt() -> None:
    talk = Conversation()
    root = talk.call("S", "a")
    talk.call("1", "b", after=root)
    second = talk.call("2", "c", after=root)
    talk.call("3", "d", after=second)
    talk.call("4", "e", after=second)
    assert shapes(build(talk)) == [
        ("S", "a1b", "^.^"),
        ("Sa2", "c3d", "^.^"),
        ("Sa2c4", "e", "^"),
    ]


def test_length_then_continue_the_closing_token_is_context() -> None:
    talk = Conversation()
    cut = talk.call("Su", "abc", finish_reason="length")
    talk.call("$go", "d", after=cut)  # $ is the end of turn that the model did not sample
    assert shapes(build(talk)) == [("Su", "abc$god", "^^^...^")]


def test_stripped_thinking_breaks_the_chain_and_loses_nothing() -> None:
    talk = Conversation()
    thinking = talk.call("Su", "<th>ab")
    talk.call("SuabT", "c", after=thinking, continues=False, break_reason="thinking_stripped")
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "<th>ab", "^^^^^^"), ("SuabT", "c", "^")]
    assert breaks(trajectory) == [("c2", "c1", "thinking_stripped")]


def test_a_rewritten_tool_call_breaks_the_chain() -> None:
    talk = Conversation()
    bad = talk.call("Su", "bad")
    talk.call("SuinvalidT", "c", after=bad, continues=False)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "bad", "^^^"), ("SuinvalidT", "c", "^")]
    assert breaks(trajectory) == [("c2", "c1", "not_continued")]


def test_a_near_match_is_a_break_although_an_earlier_call_is_continued() -> None:
    talk = Conversation()
    root = talk.call("Su", "ab")
    talk.call("T", "c", after=root)
    talk.call("U", "d", after=root, break_reason="reply_edited")
    assert breaks(build(talk)) == [("c3", "c1", "reply_edited")]


def test_hoisted_system_message_starts_a_new_root() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("SNuabT", "c", after=first, continues=False, break_reason="system_changed")
    assert shapes(build(talk)) == [("Su", "ab", "^^"), ("SNuabT", "c", "^")]


def test_an_abort_in_mid_chain_is_context_of_what_continued_it() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    aborted = talk.call("T", "xy", after=first, finish_reason="aborted")
    talk.call("U", "c", after=aborted)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "abTxyUc", "^^....^")]
    assert trajectory.traces[0].spans[1] == Span("c2", 3, 2)
    assert drops(trajectory) == [("c2", 0, 2, "aborted")]


def test_a_trace_ends_with_its_last_trainable_call() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "xy", after=first, finish_reason="aborted")
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^")]
    assert drops(trajectory) == [("c2", 0, 2, "aborted")]


def test_an_auxiliary_call_comes_first_and_is_no_trace() -> None:
    talk = Conversation()
    talk.call("title?", "fix", kind="auxiliary")
    talk.call("Su", "ab")
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^")]
    assert drops(trajectory) == [("c1", 0, 3, "kind:auxiliary")]


def test_an_auxiliary_call_that_is_continued_is_context_and_does_not_name_the_trace() -> None:
    talk = Conversation()
    probe = talk.call("Su", "q", kind="auxiliary")
    talk.call("T", "ab", after=probe)
    (trace,) = build(talk).traces
    assert shapes(build(talk)) == [("Su", "qTab", "..^^")]
    assert trace.kind == "agent"


def test_auxiliary_calls_train_when_asked_for() -> None:
    talk = Conversation()
    talk.call("title?", "fix", kind="auxiliary")
    trajectory = build(talk, trainable_kinds=["auxiliary"])
    assert shapes(trajectory) == [("title?", "fix", "^^^")]


def test_digest_mismatch_breaks_and_drops_because_what_was_sent_is_unknown() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first, prompt_digest=b"of another prompt")
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^")]
    assert breaks(trajectory) == [("c2", "c1", "digest_mismatch")]
    assert drops(trajectory) == [("c2", 0, 2, "digest_mismatch")]


def test_a_wrong_token_count_is_a_digest_mismatch_too() -> None:
    talk = Conversation()
    talk.call("Su", "ab", prompt_tokens=3)
    trajectory = build(talk)
    assert trajectory.traces == ()
    assert breaks(trajectory) == [("c1", None, "digest_mismatch")]


def test_a_call_that_proves_its_own_prompt_stands_alone_after_one_that_does_not() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    doubtful = talk.call("T", "cd", after=first, prompt_digest=b"of another prompt")
    talk.call("U", "e", after=doubtful)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^"), ("SuabTcdU", "e", "^")]
    assert breaks(trajectory) == [("c2", "c1", "digest_mismatch"), ("c3", "c2", "parent_unproven")]


def test_tampered_tokens_unprove_the_call_and_all_that_continue_it() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab", new_prompt_ids=ids("Sx"))
    talk.call("T", "cd", after=first)
    trajectory = build(talk)
    assert trajectory.traces == ()
    assert [reason for *_, reason in drops(trajectory)] == ["digest_mismatch", "digest_mismatch"]


def test_an_empty_reply_adds_nothing_and_is_named() -> None:
    talk = Conversation()
    empty = talk.call("Su", "")
    talk.call("T", "ab", after=empty)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "Tab", ".^^")]
    assert trajectory.traces[0].spans == (Span("c1", 0, 0), Span("c2", 1, 2))
    assert drops(trajectory) == [("c1", 0, 0, "empty_completion")]


def test_a_long_chain_is_as_large_as_its_last_context() -> None:
    """200 calls of 13 tokens are 2600 tokens, not the 261,300 of 200 prompts and replies."""
    talk = Conversation()
    last = None
    for _ in range(200):
        last = talk.call("promptpart", "abc", after=last)
    trajectory = build(talk)
    (trace,) = trajectory.traces
    assert last is not None
    assert letters(trace.prompt_ids + trace.response_ids) == talk.full_prompt(last) + "abc"
    assert len(trace.prompt_ids) + len(trace.response_ids) == 200 * 13


def test_calls_that_cannot_be_of_one_session_are_refused() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "c", after=first)
    builder = PrefixMerging(DriftOptions())
    with pytest.raises(UnsoundCalls, match="c1 appears twice"):
        builder.build("s1", [first, first])
    with pytest.raises(UnsoundCalls, match="c2 has parent c1, which is not among the calls"):
        builder.build("s1", [second])
    with pytest.raises(UnsoundCalls, match="c2 comes before its parent c1"):
        builder.build("s1", [second, first])


def test_a_call_without_a_prompt_is_refused() -> None:
    talk = Conversation()
    talk.call("", "ab")
    with pytest.raises(UnsoundCalls, match="c1 has an empty prompt"):
        build(talk)


def test_a_call_that_continues_without_a_parent_is_refused() -> None:
    talk = Conversation()
    talk.calls.append(msgspec.structs.replace(talk.call("Su", "ab"), call_id="c2", continues=True))
    with pytest.raises(UnsoundCalls, match="c2 continues a parent but names none"):
        build(talk)


def test_the_registry_finds_it_and_refuses_unknown_kinds() -> None:
    assert isinstance(make("builder", Spec(name="prefix_merging")), PrefixMerging)
    with pytest.raises(ConfigError, match="trainable_kinds"):
        make("builder", Spec(name="prefix_merging", options={"trainable_kinds": ["chatter"]}))


def test_the_echo_of_a_reply_plays_no_part_in_merging() -> None:
    """The gateway proved the relation by tokens; the builder does not argue with words."""
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "c", after=first, echo=Message(role="assistant", content="else"))
    assert shapes(build(talk)) == [("Su", "abTc", "^^.^")]
