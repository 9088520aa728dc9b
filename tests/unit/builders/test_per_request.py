"""The baseline: one trace for each call, each with its whole prompt."""

from __future__ import annotations

from conversation import Conversation, breaks, drops, shapes

from polar.builders.drops import DropRules
from polar.builders.per_request import PerRequest
from polar.registry import make
from polar.types import Span, Spec, Trajectory


def build(talk: Conversation) -> Trajectory:
    return PerRequest(DropRules()).build("s1", talk.calls)


def test_each_call_is_a_trace_with_its_whole_prompt() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    second = talk.call("T", "cd", after=first, kind="subagent")
    talk.call("U", "e", after=second)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^"), ("SuabT", "cd", "^^"), ("SuabTcdU", "e", "^")]
    assert [trace.kind for trace in trajectory.traces] == ["agent", "subagent", "agent"]
    assert trajectory.traces[2].metadata == {"calls": ["c3"], "trace_index": 2}
    assert trajectory.traces[2].spans == (Span("c3", 0, 1),)
    assert trajectory.builder == "per_request"
    assert trajectory.breaks == ()


def test_the_same_tokens_are_dropped_as_by_any_builder() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    lost = talk.call("T", "xx", after=first, finish_reason="aborted")
    talk.call("U", "c", after=lost)
    trajectory = build(talk)
    assert shapes(trajectory) == [("Su", "ab", "^^"), ("SuabTxxU", "c", "^")]
    assert drops(trajectory) == [("c2", 0, 2, "aborted")]


def test_a_broken_chain_is_named_and_a_fork_is_nothing_special() -> None:
    talk = Conversation()
    first = talk.call("Su", "ab")
    talk.call("T", "c", after=first)
    talk.call("U", "d", after=first)
    talk.call("SabT", "e", after=first, continues=False)
    assert breaks(build(talk)) == [("c4", "c1", "not_continued")]


def test_the_registry_finds_it() -> None:
    assert isinstance(make("builder", Spec(name="per_request")), PerRequest)
