"""The paths of a request are the same whether or not the requests before are remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polar.tokens.forest import CallForest
from polar.tokens.matching import MOST_CHARACTERS, MOST_REQUESTS, Matcher, PathIndex
from polar.types import Call, CallTimes, Message, Tool, logprobs, token_ids

messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant"]),
    content=st.sampled_from(["", "a", "b", "a "]),
    reasoning=st.sampled_from(["", "x"]),
)
requests = st.tuples(st.lists(messages, max_size=5), st.sampled_from([(), (Tool("bash"),), (Tool("edit"),)]))


@given(st.lists(requests, max_size=12))
def test_remembering_requests_changes_no_path(sent: list[tuple[list[Message], tuple[Tool, ...]]]) -> None:
    index = PathIndex(Matcher())
    for conversation, tools in sent:
        assert index.of(conversation, tools) == PathIndex(Matcher()).of(conversation, tools)
        conversation.append(Message("user", "changed behind our back"))


def test_conversations_that_take_turns_are_matched_only_where_they_are_new() -> None:
    forest = CallForest()
    sent = {name: [Message("user", f"{name} begins"), Message("user", "x" * 1000)] for name in "abc"}
    for name in sent:
        assert forest.new_characters(sent[name], ()) == len(f"{name} begins") + 1000
        forest.find(sent[name], ())
    for _ in range(3):
        for name in sent:
            sent[name].append(Message("user", "more"))
            assert forest.new_characters(sent[name], ()) == len("more")
            forest.find(sent[name], ())


def test_few_requests_are_remembered_and_only_so_much_of_them() -> None:
    index = PathIndex(Matcher())
    for number in range(3 * MOST_REQUESTS):
        index.of([Message("user", str(number))], ())
    assert len(index._recent) == MOST_REQUESTS  # pyright: ignore[reportPrivateUsage]
    index.of([Message("user", "x" * MOST_CHARACTERS)], ())
    assert len(index._recent) == 1  # pyright: ignore[reportPrivateUsage]


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.sampled_from([b"a", b"b"]), max_size=4)), max_size=12))
def test_items_are_shared_as_if_each_call_kept_them_all(shape: list[tuple[int, list[bytes]]]) -> None:
    forest, whole = CallForest(), dict[str, tuple[bytes, ...]]()
    for number, (choice, more) in enumerate(shape):
        parent_id = f"c{choice % number}" if number else None
        before = whole.get(parent_id or "", ())
        items = (*before[: choice % (len(before) + 1)], *more)
        shared = forest.shared_items(parent_id, items)
        assert before[:shared] == items[:shared]
        assert shared in (len(before), len(items)) or before[shared] != items[shared]
        forest.add(a_call(f"c{number}", parent_id, shared, items[shared:]))
        whole[f"c{number}"] = items


def a_call(call_id: str, parent_id: str | None, shared: int, new_items: tuple[bytes, ...]) -> Call:
    return Call(
        call_id=call_id,
        session_id="s",
        parent_id=parent_id,
        continues=False,
        new_prompt_ids=token_ids([1]),
        completion_ids=token_ids([2]),
        logprobs=logprobs([-1.0]),
        prompt_digest=b"",
        prompt_tokens=1,
        finish_reason="stop",
        new_messages=(Message("user", call_id),),
        response=Message("assistant", "yes"),
        tools=None if parent_id else (),
        new_items=new_items,
        shared_items=shared,
        dialect="d",
        kind="agent",
        sampling={},
        engine="e",
        logprob_mode="raw",
        times=CallTimes(0.0, 0.0, 0.0),
    )
