"""Branches: each with its whole context, what they share held once."""

from __future__ import annotations

from conversation import Conversation, breaks, drops, letters, shapes
from hypothesis import given, settings
from test_exactly_once import conversations

from polar.audit.certificate import examine
from polar.builders.drift import DriftOptions
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.tree import Tree, TreeOptions
from polar.registry import make
from polar.types import Span, Spec, Trace, Trajectory
from polar.types.codec import encode
from polar.types.packed import packed, unpacked


def build(talk: Conversation, **options: object) -> Trajectory:
    return Tree(TreeOptions.model_validate(options)).build("s1", talk.calls)


def sequence(trace: Trace) -> str:
    return letters(trace.prompt_ids + trace.response_ids)


def branch(trace: Trace) -> tuple[int, int] | None:
    found = trace.metadata.get("branch")
    return (found["trace"], found["tokens"]) if found else None


def test_a_conversation_without_branches_is_what_prefix_merging_makes_of_it() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first)
    assert build(talk).traces == PrefixMerging(DriftOptions()).build("s1", talk.calls).traces
    assert build(talk).builder == "tree"


def test_a_branch_begins_where_it_left_the_trunk() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "cd", after=first)
    talk.call("U", "ef", after=second)
    talk.call("X", "gh", after=first, kind="subagent")
    trajectory = build(talk)
    assert shapes(trajectory) == [
        ("Su", "abTcdUef",
               "^^.^^.^^"),
        ("Suab", "Xgh",
                 ".^^"),
    ]  # fmt: skip
    trunk, other = trajectory.traces
    assert (branch(trunk), branch(other)) == (None, (0, 4))
    assert sequence(other)[:4] == sequence(trunk)[:4]
    assert other.spans == (Span("c4", 1, 2),)
    assert other.kind == "subagent"
    assert breaks(trajectory) == [("c4", "c1", "fork")]


def test_a_branch_of_a_branch_names_the_branch() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "cd", after=first)
    side = talk.call("X", "ef", after=first)
    talk.call("Y", "gh", after=side)
    talk.call("Z", "ij", after=side)
    trajectory = build(talk)
    assert [branch(trace) for trace in trajectory.traces] == [None, (0, 4), (1, 7)]
    assert shapes(trajectory)[2] == ("SuabXef", "Zij", ".^^")


def test_siblings_hold_what_they_share_once() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    for name in "TUVWX":
        talk.call(name, "cd", after=first)
    trunk, *others = build(talk).traces
    assert len(others) == 4
    assert len({id(trace.prompt_ids) for trace in others}) == 1
    assert [sequence(trace) for trace in [trunk, *others]] == [f"Suab{name}cd" for name in "TUVWX"]


def test_a_call_that_continues_no_tokens_is_a_root() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("compacted", "cd", after=first, continues=False, break_reason="history_rewritten")
    assert [branch(trace) for trace in build(talk).traces] == [None, None]


def test_a_prompt_that_drifts_branches_off_where_it_differs() -> None:
    """Nothing is lost, and what both begin with is held once."""
    talk = Conversation()
    first = talk.call("Su", "abc$")
    second = talk.call("SuaX$T", "de$", after=first, continues=False, break_reason="retokenised")
    talk.call("SuaX$TdE$U", "f$", after=second, continues=False, break_reason="retokenised")
    trajectory = build(talk)
    assert shapes(trajectory) == [
        ("Su", "abc$", "^^^^"),
        ("Sua", "X$Tde$", "...^^^"),
        ("SuaX$Td", "E$Uf$", "...^^"),
    ]
    assert [branch(trace) for trace in trajectory.traces] == [None, (0, 3), (1, 7)]
    assert breaks(trajectory) == [("c2", "c1", "retokenised"), ("c3", "c2", "retokenised")]
    assert examine(talk.calls, trajectory)[0].exact


def test_a_summary_and_what_follows_it_are_roots_however_they_begin() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab$")
    talk.call("SuZ", "sum$", after=first, continues=False, kind="compaction")
    assert [branch(trace) for trace in build(talk).traces] == [None, None]


def test_below_a_call_that_could_not_be_proven_the_last_proven_one_is_named() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    torn = talk.call("T", "cd", after=first, prompt_digest=b"of another prompt")
    talk.call("U", "ef", after=torn)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^"), ("SuabTcd", "Uef", ".^^")]
    assert [branch(trace) for trace in trajectory.traces] == [None, (0, 4)]
    assert drops(trajectory) == [("c2", 0, 2, "digest_mismatch")]


def test_the_file_keeps_a_shared_beginning_once() -> None:
    """A context of 50,000 tokens and 30 branches of it, at three places."""
    talk = Conversation()
    last = talk.call("p" * 50_000, "ab")
    for _ in range(3):
        for name in "ABCDEFGHIJ":
            talk.call(name, "cd", after=last, kind="subagent")
        last = talk.call("T", "ef", after=last)
    trajectory = build(talk)
    assert len(trajectory.traces) == 31
    assert len(encode(trajectory)) > 31 * 200_000
    assert len(packed(trajectory)) < 1.2 * 200_000
    back = unpacked(packed(trajectory))
    assert back == trajectory
    assert len({id(trace.prompt_ids) for trace in back.traces}) == 4, "siblings share again what they shared"


@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_every_trace_has_its_whole_context_and_says_truly_where_it_branches(talk: Conversation) -> None:
    trajectory = build(talk)
    merged = PrefixMerging(DriftOptions()).build("s1", talk.calls)
    assert [sequence(trace) for trace in trajectory.traces] == [sequence(trace) for trace in merged.traces]
    assert examine(talk.calls, trajectory)[1] == ()
    for index, trace in enumerate(trajectory.traces):
        if (where := branch(trace)) is not None:
            assert where[0] < index
            assert sequence(trajectory.traces[where[0]])[: where[1]] == sequence(trace)[: where[1]]


@settings(max_examples=80, deadline=None)
@given(talk=conversations())
def test_a_tree_survives_its_file(talk: Conversation) -> None:
    trajectory = build(talk)
    assert unpacked(packed(trajectory)) == trajectory


def test_the_registry_finds_it() -> None:
    assert isinstance(make("builder", Spec(name="tree")), Tree)
