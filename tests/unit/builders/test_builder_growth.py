"""Builders take memory for what is new, not for what is repeated. Counted, not timed."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest
from conversation import Conversation, ids

from polar.audit.certificate import certify
from polar.builders.append_only import AppendStep, appended_steps
from polar.builders.base import Builder
from polar.builders.drift import DriftOptions
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.tree import Tree, TreeOptions
from polar.types import Call, Trajectory
from polar.types.packed import packed, unpacked

pytestmark = pytest.mark.check

TOKENS = 60
"""New in each call."""
BYTES = 9
"""Of a token in a trace: id, mask, logprob."""


def a_chain(calls: int) -> list[Call]:
    talk = Conversation()
    last = None
    for number in range(calls):
        items = (f"{number} said".encode(), f"{number} replied".encode())
        shared = 2 * number
        last = talk.call("p" * (TOKENS - 20), "r" * 20, after=last, new_items=items, shared_items=shared)
    return talk.calls


def peak_of(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        kept = work()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    del kept
    return peak


@pytest.mark.parametrize("builder", [PrefixMerging(DriftOptions()), Tree(TreeOptions())], ids=["merging", "tree"])
def test_four_times_the_calls_take_four_times_the_memory(builder: Builder) -> None:
    short, long = a_chain(200), a_chain(800)
    builder.build("s1", short)  # whatever is made once is made now
    small, large = (peak_of(lambda calls=calls: builder.build("s1", calls)) for calls in (short, long))
    assert large < 4.4 * small


def test_finding_pairs_takes_memory_for_the_items_alone() -> None:
    """800 requests of 1,600 items at the end are 640,000 references, were each kept whole."""
    calls = a_chain(800)
    assert len(appended_steps(calls)) == 799
    assert peak_of(lambda: appended_steps(calls)) < 8 * 640_000 / 4


def test_a_certificate_takes_little_memory_beside_the_tokens() -> None:
    calls = a_chain(800)
    trajectory = PrefixMerging(DriftOptions()).build("s1", calls)
    certify(calls, trajectory)
    per_call = peak_of(lambda: certify(calls, trajectory)) / len(calls)
    assert per_call < 3 * TOKENS * BYTES


@pytest.mark.parametrize("siblings", [2, 40])
def test_siblings_of_a_tree_cost_their_own_tokens(siblings: int) -> None:
    context = "p" * 20_000

    def session(branches: int) -> list[Call]:
        talk = Conversation()
        trunk = talk.call(context, "ab")
        for _ in range(branches):
            talk.call("q", "cd", after=trunk, request_key=b"")  # none is known to repeat another
        return talk.calls

    calls = session(1 + siblings)
    tree: Trajectory = Tree(TreeOptions()).build("s1", calls)
    assert len({id(trace.prompt_ids) for trace in tree.traces}) == 2, "the trunk's, and that of all who leave it"
    assert peak_of(lambda: Tree(TreeOptions()).build("s1", calls)) < 4 * len(ids(context)) * 4 + 10_000 * siblings


def test_a_history_of_many_items_is_no_deep_recursion() -> None:
    talk = Conversation()
    first = talk.call("S", "a", new_items=tuple(str(number).encode() for number in range(50_000)))
    talk.call("T", "b", after=first, new_items=(b"reply", b"more"), shared_items=50_000)
    assert appended_steps(talk.calls) == [AppendStep(("c1",), ("c2",))]


def a_comb(calls: int) -> list[Call]:
    """A sub-agent continues each call of the agent."""
    talk = Conversation()
    trunk = None
    for number in range(calls // 2):
        items = (f"{number} said".encode(), f"{number} replied".encode())
        shared = 2 * number
        trunk = talk.call("p" * (TOKENS - 20), "r" * 20, after=trunk, new_items=items, shared_items=shared)
        talk.call("q" * (TOKENS - 20), "s" * 20, after=trunk, kind="subagent", new_items=())
    return talk.calls


def test_a_tree_that_branches_at_each_call_takes_memory_for_its_tokens_alone() -> None:
    """800 calls hold 400 contexts of up to 24,000 tokens: 4.8 million ids as arrays, 48,000 as they are held."""
    tree = Tree(TreeOptions())
    short, long = a_comb(200), a_comb(800)
    tree.build("s1", short)
    small, large = (peak_of(lambda calls=calls: tree.build("s1", calls)) for calls in (short, long))
    assert large < 4.4 * small
    assert large < 4_800_000 * 4 / 4


def test_a_tree_read_from_its_file_shares_its_contexts_again() -> None:
    trajectory = Tree(TreeOptions()).build("s1", a_comb(800))
    data = packed(trajectory)
    assert len(data) < 3 * 800 * TOKENS * BYTES
    assert peak_of(lambda: unpacked(data)) < 4_800_000 * 4 / 4
    assert unpacked(data) == trajectory


def test_a_healed_chain_takes_memory_for_its_last_context() -> None:
    """200 prompts of up to 8,000 tokens are 800,000 ids; the trace they are healed into has 8,000."""
    talk = Conversation()
    last = talk.call("Su", "r" * 20)
    for _ in range(200):
        prompt = talk.full_prompt(last) + "r" * 10 + "X" * 10 + "T" * 20
        last = talk.call(prompt, "r" * 20, after=last, continues=False, new_items=())
    healing = PrefixMerging(DriftOptions(drift="heal"))
    (trace,) = healing.build("s1", talk.calls).traces
    assert len(trace.response_ids) == 200 * 40 + 20
    assert peak_of(lambda: healing.build("s1", talk.calls)) < 800_000 * 4 / 2
