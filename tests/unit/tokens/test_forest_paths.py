"""The paths of a request are the same whether or not the request before is remembered."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from polar.tokens.forest import CallForest, _paths, _tools_path  # pyright: ignore[reportPrivateUsage]
from polar.types import Message, Tool

messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant"]),
    content=st.sampled_from(["", "a", "b", "a "]),
    reasoning=st.sampled_from(["", "x"]),
)
requests = st.tuples(st.lists(messages, max_size=5), st.sampled_from([(), (Tool("bash"),), (Tool("edit"),)]))


@given(st.lists(requests, max_size=8))
def test_remembering_the_last_request_changes_no_path(sent: list[tuple[list[Message], tuple[Tool, ...]]]) -> None:
    forest = CallForest(cast("Any", None))
    for conversation, tools in sent:
        fresh = _paths(_tools_path(tools), conversation)
        assert forest._paths_of(conversation, tools) == fresh  # pyright: ignore[reportPrivateUsage]
        conversation.append(Message("user", "changed behind our back"))


def test_only_the_last_request_is_remembered() -> None:
    forest = CallForest(cast("Any", None))
    for size in (50, 1):
        forest._paths_of([Message("user", str(size))] * size, ())  # pyright: ignore[reportPrivateUsage]
    kept, paths = forest._last  # pyright: ignore[reportPrivateUsage]
    assert (len(kept), len(paths)) == (1, 2)
