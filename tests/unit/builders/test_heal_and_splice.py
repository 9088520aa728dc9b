"""Token puzzles of prompts that leave the tokens they follow. `^` marks what is trained on, `.` what is context.

Capitals are what the harness says, `$` ends a turn. A reply in other letters came back in other tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conversation import Conversation, breaks, drops, shapes

from polar.audit.certificate import examine
from polar.builders.drift import DriftOptions, DriftRule
from polar.builders.drops import DropRules
from polar.builders.prefix_merging import PrefixMerging
from polar.errors import ConfigError
from polar.registry import make
from polar.types import (
    Call,
    Dropped,
    Message,
    PolicySpan,
    Span,
    Spec,
    Trajectory,
    logprobs,
    loss_mask,
    token_ids,
)


def build(talk: Conversation, drift: DriftRule) -> Trajectory:
    return PrefixMerging(DriftOptions(drift=drift)).build("s1", talk.calls)


def drifted(talk: Conversation, prompt: str, reply: str, after: Call, **changes: Any) -> Call:
    """A call that follows another with a different prompt."""
    reason = {"break_reason": "retokenised"}
    return talk.call(prompt, reply, after=after, continues=False, **(reason | changes))


def retokenised() -> Conversation:
    """The engine laid the reply `abc$` out as `aX$`."""
    talk = Conversation()
    first = talk.call("Su", "abc$")
    drifted(talk, "SuaX$T", "de$", first)
    return talk


def test_fork_is_the_default_and_loses_nothing() -> None:
    trajectory = PrefixMerging(DriftOptions()).build("s1", retokenised().calls)
    assert shapes(trajectory) == [("Su", "abc$", "^^^^"), ("SuaX$T", "de$", "^^^")]
    assert breaks(trajectory) == [("c2", "c1", "retokenised")]
    assert (trajectory.dropped, trajectory.builder_version) == ((), "2")


def test_a_builder_of_the_users_own_that_knows_no_such_option_forks() -> None:
    assert PrefixMerging(DropRules()).build("s1", retokenised().calls) == build(retokenised(), "fork")


def test_heal_continues_with_the_prompt_that_was_sent_and_trains_what_is_unchanged() -> None:
    talk = retokenised()
    trajectory = build(talk, "heal")
    assert shapes(trajectory) == [
        ("Su", "aX$Tde$",
               "^...^^^"),
    ]  # fmt: skip
    (trace,) = trajectory.traces
    assert trace.spans == (Span("c1", 0, 1), Span("c2", 4, 3))
    assert trace.context_exact
    assert drops(trajectory) == [("c1", 1, 3, "healed")]
    assert breaks(trajectory) == [("c2", "c1", "retokenised (healed)")]
    assert trajectory.builder_version == "2 heal"
    assert examine(talk.calls, trajectory)[0].exact


def test_splice_keeps_the_reply_beside_a_context_that_never_followed_it() -> None:
    talk = retokenised()
    trajectory = build(talk, "splice")
    assert shapes(trajectory) == [
        ("Su", "abc$Tde$",
               "^^^^.^^^"),
    ]  # fmt: skip
    assert not trajectory.traces[0].context_exact
    assert trajectory.dropped == ()
    assert breaks(trajectory) == [("c2", "c1", "retokenised (spliced)")]
    assert trajectory.statistics["inexact_traces"] == 1
    certificate, findings = examine(talk.calls, trajectory)
    assert (findings, certificate.exact, certificate.inexact_traces) == ((), False, 1)


def test_all_three_account_for_every_token_and_the_merge_rate_counts_neighbours() -> None:
    talk = retokenised()
    found = {rule: build(talk, rule).statistics for rule in ("fork", "heal", "splice")}
    names = ("traces", "trainable_tokens", "dropped_tokens", "merge_rate", "inexact_traces")
    assert {rule: tuple(statistics[name] for name in names) for rule, statistics in found.items()} == {
        "fork": (2, 7, 0, 0.0, 0),
        "heal": (1, 4, 3, 1.0, 0),
        "splice": (1, 7, 0, 1.0, 1),
    }
    assert found["heal"]["breaks"] == {"retokenised (healed)": 1}
    assert found["heal"]["dropped"] == {"healed": 3}


def test_a_chain_is_healed_again_and_again() -> None:
    talk = Conversation()
    first = talk.call("S", "ab$")
    second = drifted(talk, "SaB$T", "cd$", first)
    third = talk.call("U", "ef$", after=second)
    drifted(talk, "SaB$Tcd$UeF$V", "g", third)
    trajectory = build(talk, "heal")
    assert shapes(trajectory) == [
        ("S", "aB$Tcd$UeF$Vg",
              "^...^^^.^...^"),
    ]  # fmt: skip
    assert drops(trajectory) == [("c1", 1, 2, "healed"), ("c3", 1, 2, "healed")]
    assert [reason for *_, reason in breaks(trajectory)] == ["retokenised (healed)"] * 2
    assert examine(talk.calls, trajectory)[0].exact


def test_a_difference_in_an_earlier_turn_overwrites_all_that_came_after_it() -> None:
    """Reasoning of every turn is cut once the user speaks again."""
    talk = Conversation()
    first = talk.call("Su", "a(hm)b$")
    second = talk.call("T", "(so)c$", after=first)
    drifted(talk, "Suab$Tc$V", "d$", second, break_reason="rewritten")
    trajectory = build(talk, "heal")
    assert shapes(trajectory) == [
        ("Su", "ab$Tc$Vd$",
               "^......^^"),
    ]  # fmt: skip
    assert trajectory.traces[0].spans == (Span("c1", 0, 1), Span("c3", 7, 2))
    assert drops(trajectory) == [("c1", 1, 6, "healed"), ("c2", 0, 6, "healed")]
    assert trajectory.statistics["merged_pairs"] == 0, "nothing of the second call is left to follow"
    assert examine(talk.calls, trajectory)[0].exact


def test_where_nothing_trained_would_stay_it_forks() -> None:
    """Reasoning comes first in the reply: to heal would be to drop all of it."""
    talk = Conversation()
    first = talk.call("Su", "(hm)ab$")
    second = drifted(talk, "Suab$T", "(so)cd$", first, break_reason="rewritten")
    drifted(talk, "Suab$Tcd$U", "e$", second, break_reason="rewritten")
    trajectory = build(talk, "heal")
    assert [shape[0] for shape in shapes(trajectory)] == ["Su", "Suab$T", "Suab$Tcd$U"]
    assert trajectory.dropped == ()
    assert [reason for *_, reason in breaks(trajectory)] == ["rewritten", "rewritten"]


def test_a_fork_in_mid_chain_leaves_no_trace_without_anything_to_train_on() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab$", kind="auxiliary")
    second = talk.call("T", "cd$", after=first, kind="auxiliary")
    drifted(talk, "SuaB$Tcd$U", "e$", second, kind="auxiliary")
    options = DriftOptions(drift="heal", trainable_kinds=("agent",))
    assert PrefixMerging(options).build("s1", talk.calls).traces == ()
    cut = Conversation()
    lead = cut.call("Su", "ab$")
    lost = cut.call("T", "cd$", after=lead, finish_reason="aborted")
    drifted(cut, "XuaB$Tcd$U", "e$", lost)
    assert shapes(build(cut, "heal")) == [("Su", "ab$", "^^^"), ("XuaB$Tcd$U", "e$", "^^")]


def test_tokens_dropped_for_their_own_reason_are_not_dropped_twice() -> None:
    talk = Conversation()
    first = talk.call("Su", "abcd$", logprobs=logprobs([-0.5, -0.5, float("nan"), -0.5, -0.5]))
    drifted(talk, "SuaBCD$T", "e$", first)
    trajectory = build(talk, "heal")
    assert sorted(drops(trajectory)) == [
        ("c1", 1, 1, "healed"),
        ("c1", 2, 1, "missing_logprob"),
        ("c1", 3, 2, "healed"),
    ]
    assert examine(talk.calls, trajectory)[0].exact


def test_a_prompt_that_does_begin_with_the_tokens_is_healed_without_loss() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab$")
    drifted(talk, "Suab$T", "c$", first, break_reason="bridge_refused")
    assert shapes(build(talk, "heal")) == [("Su", "ab$Tc$", "^^^.^^")]


def test_what_was_shortened_once_is_not_lengthened_by_a_later_difference() -> None:
    talk = Conversation()
    first = talk.call("S", "abcdefgh$")
    second = drifted(talk, "SabX$T", "c$", first)
    drifted(talk, "SabX$Y", "d$", second)
    trajectory = build(talk, "heal")
    assert shapes(trajectory) == [("S", "abX$Yd$", "^^...^^")]
    assert drops(trajectory) == [("c1", 2, 7, "healed"), ("c2", 0, 2, "healed")]


def messages_of(*roles: str) -> tuple[Message, ...]:
    return tuple(Message(role=role, content=role) for role in roles)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "compaction"},
        {"kind": "subagent"},
        {"new_messages": messages_of("assistant", "tool", "assistant", "user")},
        {"new_messages": messages_of("user")},
        {"new_messages": messages_of("assistant")},
        {"new_messages": ()},
        {"prompt_digest": b"of another prompt"},
    ],
    ids=["summary", "sub-agent", "edited turn between", "no echo", "nothing new", "no messages", "unproven"],
)
@pytest.mark.parametrize("rule", ["heal", "splice"])
def test_what_is_not_the_next_turn_of_the_conversation_forks(rule: DriftRule, changes: dict[str, Any]) -> None:
    talk = Conversation()
    first = talk.call("Su", "abc$")
    drifted(talk, "SuaX$T", "de$", first, **changes)
    forked, found = build(talk, "fork"), build(talk, rule)
    assert (found.traces, found.dropped, found.breaks) == (forked.traces, forked.dropped, forked.breaks)


def test_nothing_is_mended_to_a_call_whose_own_prompt_is_unproven() -> None:
    talk = Conversation()
    first = talk.call("Su", "abc$", prompt_digest=b"of another prompt")
    drifted(talk, "SuaX$T", "de$", first)
    assert shapes(build(talk, "heal")) == [("SuaX$T", "de$", "^^^")]


def test_a_call_that_continues_the_tokens_goes_before_one_that_drifted() -> None:
    talk = Conversation()
    first = talk.call("Su", "abc$")
    drifted(talk, "SuaX$T", "de$", first)
    talk.call("V", "f$", after=first, kind="subagent")
    trajectory = build(talk, "heal")
    assert shapes(trajectory) == [("Su", "abc$Vf$", "^^^^.^^"), ("SuaX$T", "de$", "^^^")]
    assert breaks(trajectory) == [("c2", "c1", "retokenised")]


def test_of_two_samples_of_a_drifted_turn_the_one_received_is_healed_into_the_chain() -> None:
    talk = Conversation()
    first = talk.call("Su", "abc$")
    drifted(talk, "SuaX$T", "zz$", first, received=False)
    again = drifted(talk, "SuaX$T", "de$", first)
    drifted(talk, "SuaX$Tde$U", "f$", again, break_reason="bridge_refused")
    trajectory = build(talk, "heal")
    assert shapes(trajectory) == [("Su", "aX$Tde$Uf$", "^...^^^.^^")]
    assert drops(trajectory) == [("c1", 1, 3, "healed"), ("c2", 0, 3, "not_received")]


@pytest.mark.parametrize(
    ("reply", "prompt", "changes"),
    [
        ("abc$", "SuaX$T", {"finish_reason": "length"}),
        ("", "SuaX$T", {}),
        ("abc$", "SvaX$T", {}),
        ("abc$", "SuaXT", {}),
        ("abc$", "SuaX$", {}),
    ],
    ids=["truncated", "empty", "another prompt", "no end of turn", "nothing after it"],
)
def test_where_the_published_rule_finds_no_place_it_forks(
    reply: str, prompt: str, changes: dict[str, Any]
) -> None:
    talk = Conversation()
    first = talk.call("Su", reply, **changes)
    drifted(talk, prompt, "de$", first)
    trajectory = build(talk, "splice")
    assert all(trace.context_exact for trace in trajectory.traces)
    assert breaks(trajectory) == [("c2", "c1", "retokenised")]


def test_a_splice_of_a_splice_stays_in_one_inexact_trace() -> None:
    talk = Conversation()
    first = talk.call("Su", "(hm)ab$")
    second = drifted(talk, "Suab$T", "(so)cd$", first)
    drifted(talk, "Suab$Tcd$U", "e$", second)
    trajectory = build(talk, "splice")
    assert shapes(trajectory) == [
        ("Su", "(hm)ab$T(so)cd$Ue$",
               "^^^^^^^.^^^^^^^.^^"),
    ]  # fmt: skip
    assert (trajectory.dropped, trajectory.traces[0].context_exact) == ((), False)


def test_versions_are_cut_with_the_tokens_they_belong_to() -> None:
    talk = Conversation()
    spans = (PolicySpan("v1", 0, 1), PolicySpan("v2", 1, 2), PolicySpan("v3", 3, 2))
    first = talk.call("Su", "abcd$", policy_version="v1", policy_spans=spans)
    drifted(talk, "SuabX$T", "e$", first, policy_version="v3")
    (trace,) = build(talk, "heal").traces
    assert trace.spans[0] == Span("c1", 0, 2, "v1", (PolicySpan("v1", 0, 1), PolicySpan("v2", 1, 1)))
    assert trace.policy_versions == ("v1", "v2", "v3")


ALTERATIONS: list[tuple[dict[str, Any], str]] = [
    ({"response_ids": token_ids(map(ord, "aY$Tde$"))}, "context"),
    ({"response_ids": token_ids(map(ord, "aX$Ude$"))}, "context"),
    ({"response_ids": token_ids(map(ord, "bX$Tde$"))}, "tokens"),
    ({"loss_mask": loss_mask([1, 1, 0, 0, 1, 1, 1])}, "mask"),
    ({"loss_mask": loss_mask([0, 1, 0, 0, 1, 1, 1])}, "mask"),
    ({"loss_mask": loss_mask([1, 0, 0, 1, 1, 1, 0])}, "mask"),
    ({"logprobs": logprobs([-0.5, 0, 0, 0, -2.0, -1.0, -3.0])}, "logprob"),
    ({"spans": (Span("c1", 0, 2), Span("c2", 4, 3))}, "tokens"),
    ({"spans": (Span("c1", 0, 5), Span("c2", 4, 3))}, "span"),
    ({"spans": (Span("c2", 4, 3),)}, "mask"),
]


@pytest.mark.parametrize(("changes", "what"), ALTERATIONS)
def test_one_altered_thing_in_a_healed_trace_is_found(changes: dict[str, Any], what: str) -> None:
    talk = Conversation()
    first = talk.call("Su", "abc$")
    drifted(talk, "SuaX$T", "de$", first, logprobs=logprobs([-1.0, -2.0, -3.0]))
    healed = build(talk, "heal")
    altered = msgspec.structs.replace(healed.traces[0], **changes)
    certificate, findings = examine(talk.calls, msgspec.structs.replace(healed, traces=(altered,)))
    assert what in {finding.what for finding in findings}
    assert not certificate.exact


@pytest.mark.parametrize(
    "dropped",
    [(), (Dropped("c1", 1, 2, "healed"),), (Dropped("c1", 0, 4, "healed"),), (Dropped("c1", 1, 3, ""),)],
)
def test_what_a_span_leaves_out_has_to_be_in_the_dropped_list(dropped: tuple[Dropped, ...]) -> None:
    talk = retokenised()
    healed = msgspec.structs.replace(build(talk, "heal"), dropped=dropped)
    assert {finding.what for finding in examine(talk.calls, healed)[1]} == {"coverage"}


def test_a_spliced_trace_is_still_held_to_ids_mask_and_logprobs() -> None:
    talk = retokenised()
    spliced = build(talk, "splice")
    for changes, what in [
        ({"response_ids": token_ids(map(ord, "abx$Tde$"))}, "tokens"),
        ({"loss_mask": loss_mask([1, 1, 1, 1, 1, 1, 1, 1])}, "mask"),
        ({"logprobs": logprobs([-0.5, -0.5, -0.6, -0.5, 0, -0.5, -0.5, -0.5])}, "logprob"),
    ]:
        altered = msgspec.structs.replace(spliced.traces[0], **changes)
        found = examine(talk.calls, msgspec.structs.replace(spliced, traces=(altered,)))[1]
        assert [finding.what for finding in found] == [what]


def test_the_registry_takes_the_option_and_the_tree_says_why_it_does_not() -> None:
    assert isinstance(make("builder", Spec(name="prefix_merging", options={"drift": "heal"})), PrefixMerging)
    with pytest.raises(ConfigError, match="drift"):
        make("builder", Spec(name="prefix_merging", options={"drift": "mend"}))
    make("builder", Spec(name="tree", options={"drift": "fork"}))
    with pytest.raises(ConfigError, match=r"drift: .*nothing to heal.*prefix_merging"):
        make("builder", Spec(name="tree", options={"drift": "heal"}))
