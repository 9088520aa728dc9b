"""Chat mode: the engine renders, the gateway captures, and how prompts hang together is found out afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playbook import BASH_TOOL, Gateway, vocabulary_of
from scripted_chat import ScriptedChatEngine, chatting_gateway

from polar import registry
from polar.audit.certificate import certify
from polar.engines.base import EngineInfo
from polar.testing import Script, ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call, Policy, Spec, TrajectoryStatistics
from waiting import until

HELLO: list[Any] = [{"role": "user", "content": "What is in the harbour?"}]
BOATS = "There are boats in the harbour of Zürich."
OpenChat = Callable[[Script], Awaitable[Gateway]]


@pytest.fixture
async def open_chat(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncGenerator[OpenChat]:
    info = EngineInfo("scripted-chat", "script", 2048, "raw", parallel=8, constrains=True)
    async with AsyncExitStack() as stack:

        async def open_one(script: Script) -> Gateway:
            engine = ScriptedChatEngine(smollm2, vocabulary_of(smollm2), script, info)
            return await chatting_gateway(stack, tmp_path, engine)

        yield open_one


def as_encoded(renderer: SmolLM2Renderer, text: str) -> ScriptedReply:
    """Sampled in the very tokens into which the template's text is encoded again."""
    return ScriptedReply(ids=(*renderer.encode(text), renderer.stop_ids[0]))


def statistics_of(calls: list[Call]) -> TrajectoryStatistics:
    trajectory = registry.make("builder", Spec(name="prefix_merging")).build("s1", calls)
    assert certify(calls, trajectory).exact
    return TrajectoryStatistics.model_validate(trajectory.statistics)


async def two_turns(gateway: Gateway, **task: Any) -> list[Call]:
    client = gateway.client(await gateway.open(**task))
    messages = [*HELLO]
    for _ in range(2):
        reply = await client.chat.completions.create(model="polar", messages=messages, tools=[BASH_TOOL])
        said: Any = reply.choices[0].message.model_dump(exclude_none=True)
        messages += [said, *(answers(said) or [{"role": "user", "content": "And behind it?"}])]
    return await gateway.calls()


def answers(said: dict[str, Any]) -> list[dict[str, Any]]:
    calls = said.get("tool_calls", [])
    return [{"role": "tool", "tool_call_id": call["id"], "content": "two boats"} for call in calls]


async def test_prompts_that_begin_with_the_tokens_before_are_one_trace(
    open_chat: OpenChat, smollm2: SmolLM2Renderer
) -> None:
    gateway = await open_chat([as_encoded(smollm2, BOATS), as_encoded(smollm2, "A hill.")])
    first, second = await two_turns(gateway)
    assert second.continues and second.parent_id == first.call_id and second.drift is None
    assert first.response.content == BOATS
    sent = [seen.request.prompt_ids for seen in gateway.engine.requests]
    assert sent == [
        first.new_prompt_ids,
        first.new_prompt_ids + first.completion_ids + second.new_prompt_ids,
    ]
    built = statistics_of([first, second])
    assert (built.traces, built.merge_rate, built.breaks) == (1, 1.0, {})


async def test_the_same_text_in_other_tokens_is_recorded_and_forks(open_chat: OpenChat) -> None:
    gateway = await open_chat([BOATS, "A hill."])  # the script splits a token against the tokenizer's habit
    first, second = await two_turns(gateway)
    assert not second.continues and second.parent_id == first.call_id
    assert second.drift is not None and second.break_reason == second.drift.kind == "retokenised"
    at = second.drift.position - len(first.new_prompt_ids)
    assert 0 <= at < len(first.completion_ids), "the first difference lies in the sampled tokens"
    assert second.new_prompt_ids[second.drift.position] != first.completion_ids[at]
    assert second.drift.found.startswith(second.drift.expected.removesuffix("<|im_end|>"))
    built = statistics_of([first, second])
    assert (built.traces, built.merge_rate, built.breaks) == (2, 0.0, {"retokenised": 1})


async def test_a_template_that_rewrites_the_text_is_recorded_as_rewritten(open_chat: OpenChat) -> None:
    call = '<tool_call>\n{"arguments": {"command":   "ls"}, "name": "bash"}\n</tool_call>'
    gateway = await open_chat([call, "Done."])
    first, second = await two_turns(gateway)
    assert first.response.tool_calls[0].arguments == '{"command":   "ls"}'
    assert second.drift is not None and second.break_reason == second.drift.kind == "rewritten"
    assert '"arguments"' in second.drift.expected and second.drift.found != second.drift.expected
    assert statistics_of([first, second]).breaks == {"rewritten": 1}


async def test_the_engine_gets_the_task_s_sampling_and_the_harness_s_words(open_chat: OpenChat) -> None:
    gateway = await open_chat(["Yes.", "No."])
    await two_turns(gateway, sampling={"seed": 7, "max_tokens": 50, "stop": ["END"]})
    engine = gateway.engine
    assert isinstance(engine, ScriptedChatEngine)
    asked = engine.prompts[1]
    assert [message.role for message in asked.messages] == ["user", "assistant", "user"]
    assert (asked.tools[0].name, asked.max_tokens, asked.stop) == ("bash", 50, ("END",))
    assert asked.seed is not None and asked.seed != engine.prompts[0].seed


async def test_a_stream_begins_at_once_and_counts_the_prompt(open_chat: OpenChat) -> None:
    gateway = await open_chat([ScriptedReply(text=BOATS, block_after=3)])
    client = gateway.client(await gateway.open())
    stream = await client.chat.completions.create(
        model="polar", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = aiter(stream)
    await anext(chunks)
    gateway.engine.release()
    rest = [chunk async for chunk in chunks]
    (call,) = await gateway.calls()
    assert "".join(c.choices[0].delta.content or "" for c in rest if c.choices) == BOATS
    usage = rest[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (call.prompt_tokens, len(call.completion_ids))


async def test_tokens_are_counted_and_nothing_is_recorded(open_chat: OpenChat) -> None:
    gateway = await open_chat(["Yes."])
    slot = await gateway.open()
    body = {"model": "polar", "max_tokens": 9, "messages": HELLO}
    _, counted, _ = await gateway.post(slot, body, "/v1/messages/count_tokens")
    assert await gateway.calls() == []
    _, reply, _ = await gateway.post(slot, body, "/v1/messages")
    assert counted["input_tokens"] == reply["usage"]["input_tokens"] > 5


async def test_a_prompt_that_is_too_long_is_refused_and_costs_nothing(open_chat: OpenChat) -> None:
    gateway = await open_chat(["Yes."])
    slot = await gateway.open(budgets={"max_calls": 1})
    long = [{"role": "user", "content": "boat " * 3000}]
    status, body, _ = await gateway.post(slot, {"messages": long})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 200


async def test_a_conversation_the_template_refuses_is_a_hard_stop(open_chat: OpenChat) -> None:
    gateway = await open_chat([])
    slot = await gateway.open()
    engine: Any = gateway.engine
    engine.refuses = "roles must alternate"
    status, body, headers = await gateway.post(slot, {"messages": HELLO})
    assert (status, headers["x-should-retry"], body["error"]["code"]) == (400, "false", "not_renderable")
    assert "roles must alternate" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/completions", {"prompt": "The sea is"}, "not_supported"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
            "images_not_supported",
        ),
    ],
)
async def test_what_chat_mode_cannot_capture_is_refused(
    open_chat: OpenChat, path: str, body: dict[str, Any], code: str
) -> None:
    gateway = await open_chat([])
    status, said, _ = await gateway.post(await gateway.open(), {"model": "polar", **body}, path)
    assert (status, said["error"]["code"]) == (400, code)


async def test_an_engine_that_hides_the_prompt_is_a_defect(open_chat: OpenChat) -> None:
    gateway = await open_chat(["Yes."])
    slot = await gateway.open()
    engine: Any = gateway.engine
    engine.hides_prompts = True
    status, body, _ = await gateway.post(slot, {"messages": HELLO})
    assert status == 502 and "did not return the ids of the prompt" in body["error"]["message"]
    assert await gateway.calls() == []


async def test_what_was_sampled_of_a_broken_reply_is_kept_as_aborted(open_chat: OpenChat) -> None:
    gateway = await open_chat([ScriptedReply(text=BOATS, error="the card is on fire")])
    status, body, _ = await gateway.post(await gateway.open(), {"messages": HELLO})
    assert status == 502 and "on fire" in body["error"]["message"]
    (call,) = await gateway.calls()
    assert call.finish_reason == "aborted" and len(call.completion_ids) > 3
    built = statistics_of([call])
    assert (built.traces, built.dropped) == (0, {"aborted": len(call.completion_ids)})


async def test_sealing_cancels_a_chat(open_chat: OpenChat) -> None:
    gateway = await open_chat([ScriptedReply(text=BOATS, block_after=2)])
    slot = await gateway.open()
    pending = asyncio.create_task(gateway.post(slot, {"messages": HELLO}))
    await until(lambda: gateway.engine.requests and gateway.engine.requests[0].completion_ids)
    await gateway.slots.seal("s1")
    assert (await pending)[1]["error"]["code"] == "session_sealed"
    assert gateway.engine.active == 0
    (call,) = await gateway.calls()
    assert (call.finish_reason, len(call.completion_ids)) == ("aborted", 2)


async def test_tool_calls_get_ids_that_the_harness_answers(open_chat: OpenChat) -> None:
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    gateway = await open_chat([f"{call}\n{call}", "Done."])
    first, second = await two_turns(gateway)
    ids = [c.call_id for c in first.response.tool_calls]
    assert len(set(ids)) == 2 and [m.tool_call_id for m in second.new_messages[1:]] == ids
    assert first.finish_reason == "tool_calls"


async def test_a_drift_without_text_does_not_lose_the_reply(open_chat: OpenChat) -> None:
    gateway = await open_chat([BOATS, "A hill."])
    engine: Any = gateway.engine
    engine.mute = True
    first, second = await two_turns(gateway)
    assert second.drift is not None and second.break_reason == second.drift.kind == "drifted"
    assert (second.drift.expected, second.response.content) == ("", "A hill.")
    built = statistics_of([first, second])
    assert (built.dropped_tokens, built.breaks) == (0, {"drifted": 1})


async def test_a_reply_ends_when_calls_side_by_side_have_used_up_the_budget(open_chat: OpenChat) -> None:
    gateway = await open_chat([BOATS * 20] * 4)
    slot = await gateway.open(budgets={"max_tokens": 40})
    asked = [[{"role": "user", "content": f"harbour {number}"}] for number in range(4)]
    await asyncio.gather(*(gateway.post(slot, {"messages": messages}) for messages in asked))
    calls = await gateway.calls()
    sampled = sum(len(call.completion_ids) for call in calls)
    assert 40 <= sampled < 40 + 4 * 8, "no further than the piece that each of them was at"
    assert {call.finish_reason for call in calls} == {"length"}
    assert (await gateway.post(slot, {"messages": HELLO}))[1]["error"]["code"] == "budget_exhausted"


async def test_an_engine_that_counts_by_sampling_does_not_count_in_a_pause(open_chat: OpenChat) -> None:
    gateway = await open_chat(["Yes."])
    slot = await gateway.open()
    engine: Any = gateway.engine
    engine.counts_by_sampling = True
    gateway.gate.set(Policy(version="v1", paused=True))
    pending = asyncio.create_task(gateway.post(slot, {"messages": HELLO}))
    await asyncio.sleep(0.1)
    assert engine.counted == 0 and not pending.done()
    gateway.gate.set(Policy(version="v2"))
    assert (await pending)[0] == 200
    assert [call.policy_version for call in await gateway.calls()] == ["v2"]
