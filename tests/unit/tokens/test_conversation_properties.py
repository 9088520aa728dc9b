"""Whatever a harness does to its history and a model to its tokens: what was sampled stays as it was sampled.

Generated conversations over real tokenizers. HYPOTHESIS_PROFILE=explore looks for new ones, and for more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from real_families import (
    DEEPSEEK,
    LLAMA,
    LLAMA_AS_IS,
    LLAMA_SYSTEM,
    QWEN3,
    QWEN3_AS_IS,
    QWEN3_QUIET,
    QWEN25,
    SMOLLM2,
    RealFamily,
    in_check,
    loaded,
)
from rollout import PlannedReply, Rollout, spelled, written

from polar.audit.certificate import certify
from polar.builders.base import Builder
from polar.builders.per_request import PerRequest
from polar.builders.prefix_merging import PrefixMerging
from polar.builders.tree import Tree
from polar.errors import ConfigError, HarnessError
from polar.tokens.base import Renderer
from polar.tokens.preflight.checks import without_bridges
from polar.types import Call, Message, TokenIds, Tool, ToolCall, Trajectory, token_ids

BUILDERS: list[Builder] = [
    PrefixMerging(PrefixMerging.Options()),  # pyright: ignore[reportArgumentType]
    PerRequest(PerRequest.Options()),  # pyright: ignore[reportArgumentType]
    Tree(Tree.Options()),  # pyright: ignore[reportArgumentType]
]
PROVEN = [QWEN3, LLAMA, SMOLLM2, QWEN3_AS_IS, *in_check(QWEN3_QUIET, QWEN25, LLAMA_AS_IS)]
EXAMPLES = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 60
BASH = Tool(name="bash", description="Run", parameters={"type": "object", "properties": {}})
LOOK = Tool(name="look", description="Look", parameters={"type": "object", "properties": {}})

conversed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
texts = st.text("ab 1.\n\tÄß北\U0001f980\"'{}<>/|_", min_size=1, max_size=12)
arguments = st.sampled_from(['{"a":1}', '{"command": "ls -l"}', '{ "b" : [1.0, "北"] , "a": null}', "{}"])


@pytest.fixture(scope="module", params=PROVEN, ids=str)
def renderer(request: pytest.FixtureRequest) -> Renderer:
    return available(request.param)


def available(which: RealFamily) -> Renderer:
    try:
        return loaded(which)
    except (HarnessError, ConfigError) as error:
        pytest.skip(str(error))


@st.composite
def replies(draw: st.DrawFn) -> PlannedReply:
    calls = [
        ToolCall(name=draw(st.sampled_from(["bash", "look"])), arguments=draw(arguments))
        for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2])))
    ]
    return PlannedReply(thought=draw(st.just("") | texts), text=draw(st.just("") | texts), calls=tuple(calls))


@dataclass(frozen=True)
class Request:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


class Session:
    """A harness and a model at random."""

    def __init__(self, renderer: Renderer, draw: st.DrawFn) -> None:
        self.rollout = Rollout(renderer)
        self.draw = draw
        start = Message(role="system", content=draw(texts)), Message(role="user", content=draw(texts))
        self.start = Request(start, (BASH, LOOK))
        self.answered: list[tuple[Request, Call]] = []

    def sample(self, request: Request, *, ends: tuple[str, ...]) -> Call | None:
        """None where the model's template refuses such a history."""
        renderer, draw = self.rollout.renderer, self.draw
        try:
            prompt = self.rollout.request(request.messages, request.tools)
        except ValueError:
            return None
        if prompt.continues:
            assert prompt.parent_id is not None
            assert prompt.prompt_ids == self.rollout.full[prompt.parent_id] + prompt.new_prompt_ids
        else:
            assert prompt.prompt_ids == renderer.render(request.messages, request.tools)
        text = written(renderer, draw(replies()))
        ids = spelled(renderer, text, draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
        end = draw(st.sampled_from(ends))
        call = self.rollout.reply(prompt, (request.messages, request.tools), self.ended(ids, end), finish_of(end))
        self.answered.append((request, call))
        return call

    def ended(self, ids: TokenIds, end: str) -> TokenIds:
        stops = self.rollout.renderer.stop_ids
        if end == "end of turn":
            return ids + token_ids(stops[:1])
        if end == "other end of turn":
            return ids + token_ids(stops[-1:])
        return ids if end == "stop string" else ids[: self.draw(st.integers(0, len(ids)))]

    def appended(self, request: Request, call: Call, echo: Message | None = None) -> Request:
        """The history with the reply, and what the world has to say to it."""
        results = [
            Message(role="tool", content=self.draw(texts), tool_call_id=tool_call.call_id)
            for tool_call in call.response.tool_calls
        ]
        if not results or self.draw(st.booleans()):
            results.append(Message(role="user", content=self.draw(texts)))
        return replace_messages(request, (*request.messages, echo or call.response, *results))


ENDS = ("end of turn", "end of turn", "other end of turn", "stop string", "length", "aborted")


def finish_of(end: str) -> str:
    return end if end in ("length", "aborted") else "stop"


def replace_messages(request: Request, messages: tuple[Message, ...]) -> Request:
    return Request(messages, request.tools)


def echoed(draw: st.DrawFn, reply: Message) -> Message:
    """As harnesses send replies back."""
    how = draw(st.sampled_from(["as it was", "no reasoning", "other spelling", "other ids"]))
    if how == "no reasoning":
        return replace(reply, reasoning="")
    if how == "as it was":
        return reply
    changed = [
        replace(call, arguments=f" {call.arguments} ") if how == "other spelling" else replace(call, call_id="x")
        for call in reply.tool_calls
    ]
    return replace(reply, tool_calls=tuple(changed))


def spoilt(draw: st.DrawFn, request: Request) -> Request:
    """A history that is no longer what it was."""
    messages = list(request.messages)
    what = draw(st.sampled_from(["compact", "edit", "reorder", "cut", "system", "tools"]))
    if what == "compact":
        messages = [messages[0], Message(role="user", content=draw(texts))]
    elif what == "edit":
        index = draw(st.integers(1, len(messages) - 1))
        messages[index] = replace(messages[index], content=draw(texts))
    elif what == "reorder":
        messages.insert(draw(st.integers(1, len(messages) - 1)), messages.pop())
    elif what == "cut":
        del messages[draw(st.integers(2, len(messages))) :]
    elif what == "system":
        messages[0] = Message(role="system", content=draw(texts))
    tools = (LOOK,) if what == "tools" else request.tools
    if messages[-1].role == "assistant":
        messages.append(Message(role="user", content=draw(texts)))
    return Request(tuple(messages), tools)


def next_request(session: Session) -> Request:
    draw = session.draw
    if not session.answered:
        return session.start
    request, call = draw(st.sampled_from(session.answered))
    what = draw(st.sampled_from(["go on"] * 4 + ["retry", "spoil", "spoil what follows"]))
    if what == "retry":
        return request
    if what == "spoil":
        return spoilt(draw, request)
    longer = session.appended(request, call, echoed(draw, call.response))
    return spoilt(draw, longer) if what == "spoil what follows" else longer


@st.composite
def wild(draw: st.DrawFn, renderer: Renderer) -> Session:
    session = Session(renderer, draw)
    for _ in range(draw(st.integers(2, 8))):
        session.sample(next_request(session), ends=ENDS)
    return session


@st.composite
def append_only(draw: st.DrawFn, renderer: Renderer) -> Session:
    session = Session(renderer, draw)
    request = session.start
    for _ in range(draw(st.integers(2, 6))):
        call = session.sample(request, ends=tuple(end for end in ENDS if end != "aborted"))
        assert call is not None
        request = session.appended(request, call)
    return session


def placed(trajectory: Trajectory) -> Counter[tuple[str, int]]:
    """Each position of each call, as often as it is trained on or dropped with a reason."""
    count: Counter[tuple[str, int]] = Counter()
    for trace in trajectory.traces:
        for span in trace.spans:
            mask = trace.loss_mask[span.start : span.start + span.length]
            count.update((span.call_id, position) for position, bit in enumerate(mask) if bit)
    for drop in trajectory.dropped:
        assert drop.reason
        count.update((drop.call_id, position) for position in range(drop.start, drop.start + drop.length))
    return count


def check_builders(session: Session) -> None:
    calls, whole = session.rollout.calls, session.rollout.full
    sampled = Counter((call.call_id, position) for call in calls for position in range(len(call.completion_ids)))
    for builder in BUILDERS:
        trajectory = builder.build("s", calls)
        assert placed(trajectory) == sampled
        assert certify(calls, trajectory).exact
        for trace in trajectory.traces:
            for span in trace.spans:
                tokens = trace.prompt_ids + trace.response_ids[: span.start + span.length]
                assert tokens == whole[span.call_id], "the engine's own context, to the last token"


@conversed
@given(data=st.data())
def test_what_was_sampled_comes_out_once_in_its_own_context(renderer: Renderer, data: st.DataObject) -> None:
    check_builders(data.draw(wild(renderer)))


@conversed
@given(data=st.data())
def test_a_history_that_only_grows_is_one_trace(renderer: Renderer, data: st.DataObject) -> None:
    session = data.draw(append_only(renderer))
    check_builders(session)
    merged = BUILDERS[0].build("s", session.rollout.calls)
    assert merged.statistics["breaks"] == {}
    assert merged.statistics["merge_rate"] in (1.0, None)
    assert all(call.continues for call in session.rollout.calls[1:])


@pytest.mark.parametrize("which", [QWEN3, QWEN3_AS_IS], ids=str)
@pytest.mark.parametrize("retention", ["template", "strip"])
@conversed
@given(data=st.data())
def test_what_a_template_rewrites_is_a_branch_of_its_own(
    which: RealFamily, retention: str, data: st.DataObject
) -> None:
    renderer = available(which).retaining(retention)  # pyright: ignore[reportArgumentType]
    session = data.draw(append_only(renderer))
    check_builders(session)
    for call in session.rollout.calls[1:]:
        assert call.continues or call.break_reason == "bridge_refused"


@conversed
@given(data=st.data())
def test_a_family_that_is_not_proven_forks_at_every_turn_and_loses_nothing(data: st.DataObject) -> None:
    session = data.draw(append_only(without_bridges(available(DEEPSEEK))))
    check_builders(session)
    later = session.rollout.calls[1:]
    assert {(call.continues, call.break_reason) for call in later} == {(False, "bridge_refused")}


@pytest.mark.parametrize("which", [QWEN3, LLAMA, SMOLLM2, QWEN3_AS_IS, *in_check(LLAMA_SYSTEM, QWEN25)], ids=str)
@conversed
@given(data=st.data())
def test_what_is_appended_is_what_the_template_writes(which: RealFamily, data: st.DataObject) -> None:
    """To a reply in the tokens in which the template itself writes it, so that both can be compared."""
    renderer = available(which).retaining("template")
    start = [Message(role=role, content=data.draw(texts)) for role in ("system", "user")]
    planned = data.draw(replies())
    after = [Message(role="tool", content=data.draw(texts), tool_call_id="c") for _ in planned.calls[:1]]
    after += [Message(role="user", content=data.draw(texts))] if not after or data.draw(st.booleans()) else []
    reply = Message(role="assistant", content=planned.text, tool_calls=planned.calls[:1])
    prompt_ids = renderer.render(start, [BASH])
    whole_ids = renderer.render([*start, reply, *after], [BASH])
    assume(whole_ids[: len(prompt_ids)] == prompt_ids)  # white space that begins a reply may join the prompt's
    positions = range(len(prompt_ids), len(whole_ids))
    end = next(position + 1 for position in positions if whole_ids[position] in renderer.stop_ids)
    bridged = renderer.bridge(prompt_ids, whole_ids[len(prompt_ids) : end], after, [BASH])
    if which.model == QWEN3.model and after[-1].role == "user":
        assert bridged is None, "where the user speaks again its template may rewrite"
    else:
        assert bridged == whole_ids[end:]
