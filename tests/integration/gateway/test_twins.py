"""A harness that asks again: it is joined to the call under way, or given the reply it did not get, and nothing is
sampled twice. What it did get and asks for again is another sample."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
from playbook import Gateway, OpenGateway

from polar.builders.prefix_merging import PrefixMerging
from polar.testing import ScriptedReply
from polar.types import CallProfile, Slot
from waiting import until

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "stream": True}


async def ask(
    gateway: Gateway, slot: Slot, body: dict[str, Any] = HELLO, **headers: str
) -> aiohttp.ClientResponse:
    return await gateway.http.post(
        f"{slot.base_url}/v1/chat/completions",
        data=orjson.dumps(body),
        headers={"authorization": f"Bearer {slot.key}", **headers},
    )


async def text_of(response: aiohttp.ClientResponse) -> str:
    events = [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: {")]
    chunks = [choice["delta"] for event in events for choice in orjson.loads(event)["choices"]]
    return "".join(delta.get("content") or "" for delta in chunks)


async def test_a_retry_of_a_call_under_way_joins_it(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="One reply for both.", block_after=2)])
    slot = await gateway.open(budgets={"max_calls": 1})  # of which a retry takes nothing
    first = await ask(gateway, slot)
    second = await ask(gateway, slot)
    gateway.engine.release()
    assert await text_of(first) == await text_of(second) == "One reply for both."
    (call,) = await gateway.calls()
    assert call.received and len(gateway.engine.requests) == 1


async def test_a_stream_cut_in_the_middle_is_sent_again_from_its_beginning(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="The whole story again.", block_after=3)])
    slot = await gateway.open()
    cut = await ask(gateway, slot)
    await cut.content.readline()
    cut.close()
    again = await ask(gateway, slot)
    gateway.engine.release()
    assert await text_of(again) == "The whole story again."
    (call,) = await gateway.calls()
    assert call.received and call.finish_reason == "stop" and len(gateway.engine.requests) == 1


async def test_a_reply_without_a_listener_is_kept_for_the_retry(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Kept for you.", block_after=2), "Another."], linger_s=60)
    slot = await gateway.open()
    (await ask(gateway, slot)).close()
    await until(lambda: gateway.slots.find(slot.key)._active)  # pyright: ignore
    gateway.engine.release()
    await until(lambda: not gateway.slots.find(slot.key)._active)  # pyright: ignore
    (unheard,) = await gateway.calls()
    assert not unheard.received and unheard.finish_reason == "stop"
    assert await text_of(await ask(gateway, slot)) == "Kept for you."
    (call,) = await gateway.calls()
    assert call.received and len(gateway.engine.requests) == 1
    # Delivered now: the same question is a new one.
    assert await text_of(await ask(gateway, slot)) == "Another."
    assert [c.received for c in await gateway.calls()] == [True, True]


async def test_a_generation_without_a_retry_ends(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Never heard.", block_after=2), "Fresh."], linger_s=0.05)
    slot = await gateway.open()
    (await ask(gateway, slot)).close()
    await until(lambda: gateway.engine.requests and gateway.engine.active == 0)
    assert await text_of(await ask(gateway, slot)) == "Fresh."
    aborted, fresh = await gateway.calls()
    assert (aborted.finish_reason, aborted.received) == ("aborted", False)
    assert fresh.received
    trajectory = PrefixMerging(PrefixMerging.Options()).build("s1", [aborted, fresh])
    (trace,) = trajectory.traces
    assert trace.response_ids == fresh.completion_ids, "no phantom turn"
    assert [(d.call_id, d.reason) for d in trajectory.dropped] == [(aborted.call_id, "aborted")]


async def test_a_retry_may_want_the_reply_whole(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="As you like.", block_after=2)])
    slot = await gateway.open()
    streamed = await ask(gateway, slot)
    whole = asyncio.create_task(ask(gateway, slot, {**HELLO, "stream": False}))
    (generation,) = gateway.slots.find(slot.key).unreceived.values()  # pyright: ignore
    await until(lambda: generation._listeners == 2)  # pyright: ignore[reportPrivateUsage]
    gateway.engine.release()
    assert (await (await whole).json())["choices"][0]["message"]["content"] == "As you like."
    assert await text_of(streamed) == "As you like."
    assert len(gateway.engine.requests) == 1


async def test_a_retry_may_write_its_fields_in_another_order(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Same thing.", block_after=2)])
    slot = await gateway.open()
    first = await ask(gateway, slot)
    shuffled = {
        "stream": True,
        "messages": [{"content": "Hello.", "role": "user"}],
        "model": "m",
    }
    second = await ask(gateway, slot, shuffled)
    gateway.engine.release()
    assert await text_of(first) == await text_of(second) == "Same thing."
    assert len(gateway.engine.requests) == 1


async def test_parallel_work_that_says_who_it_is_is_not_joined(open_gateway: OpenGateway) -> None:
    script = [
        ScriptedReply(text="For the first.", block_after=2),
        ScriptedReply(text="For the second.", block_after=2),
    ]
    gateway = await open_gateway(script)
    slot = await gateway.open(profile=CallProfile(attribution_headers=("x-agent-id",)))
    first = await ask(gateway, slot, **{"x-agent-id": "a"})
    second = await ask(gateway, slot, **{"x-agent-id": "b"})
    retry = await ask(gateway, slot, **{"X-Agent-Id": "a"})
    gateway.engine.release()
    assert await text_of(first) == await text_of(retry) == "For the first."
    assert await text_of(second) == "For the second."
    assert len(await gateway.calls()) == 2


async def test_what_failed_is_sampled_again(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="Half a", error="out of memory"), "Whole."])
    slot = await gateway.open()
    body = {**HELLO, "stream": False}
    assert (await ask(gateway, slot, body)).status == 502
    assert (await (await ask(gateway, slot, body)).json())["choices"][0]["message"]["content"] == "Whole."
    failed, whole = await gateway.calls()
    assert (failed.finish_reason, failed.received) == ("aborted", False)
    assert whole.received


async def test_two_sessions_with_the_same_question_have_nothing_to_do_with_each_other(
    open_gateway: OpenGateway,
) -> None:
    gateway = await open_gateway(lambda turn, ids: ScriptedReply(text="Mine.", block_after=2))
    one, two = await gateway.open("one"), await gateway.open("two")
    replies = [await ask(gateway, one), await ask(gateway, two)]
    gateway.engine.release()
    assert [await text_of(reply) for reply in replies] == ["Mine.", "Mine."]
    assert [len(await gateway.calls(name)) for name in ("one", "two")] == [1, 1]


async def test_calls_side_by_side_share_one_budget_of_tokens(open_gateway: OpenGateway) -> None:
    text = "one two three four five six seven eight nine ten"
    gateway = await open_gateway(lambda turn, ids: ScriptedReply(text=text, block_after=2))
    slot = await gateway.open(budgets={"max_tokens": 9})
    bodies = [{**HELLO, "messages": [{"role": "user", "content": f"Question {i}."}]} for i in range(3)]
    replies = [await ask(gateway, slot, body) for body in bodies]
    gateway.engine.release()
    for reply in replies:
        await reply.read()
    calls = await gateway.calls()
    assert sum(len(call.completion_ids) for call in calls) == 9
    assert {call.finish_reason for call in calls} == {"length"}
    refused = await ask(gateway, slot)
    assert (refused.status, (await refused.json())["error"]["code"]) == (400, "budget_exhausted")


async def test_a_reply_that_was_received_and_asked_for_again_is_superseded(open_gateway: OpenGateway) -> None:
    """As a harness does that lost a reply after its last byte: the second is what it goes on from."""
    gateway = await open_gateway(["Lost on the way.", "Used.", "And on."])
    slot = await gateway.open()
    for _ in range(2):
        used = await text_of(await ask(gateway, slot))
    echo = [{"role": "assistant", "content": used}, {"role": "user", "content": "Go on."}]
    await text_of(await ask(gateway, slot, {**HELLO, "messages": [*HELLO["messages"], *echo]}))
    lost, again, last = await gateway.calls()
    assert lost.received and lost.request_key == again.request_key != last.request_key
    trajectory = PrefixMerging(PrefixMerging.Options()).build("s1", [lost, again, last])
    (trace,) = trajectory.traces
    assert [span.call_id for span in trace.spans] == [again.call_id, last.call_id]
    assert [(drop.call_id, drop.reason) for drop in trajectory.dropped] == [(lost.call_id, "superseded")]


async def test_equal_work_of_two_agents_has_two_keys(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["For the first.", "For the second."])
    slot = await gateway.open(profile=CallProfile(attribution_headers=("x-agent-id",)))
    for name in ("a", "b"):
        await text_of(await ask(gateway, slot, **{"x-agent-id": name}))
    first, second = await gateway.calls()
    assert first.request_key != second.request_key
    assert PrefixMerging(PrefixMerging.Options()).build("s1", [first, second]).dropped == ()


async def test_tokens_given_after_a_stop_text_are_counted(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway([ScriptedReply(text="One two STOP three four five.")])
    slot = await gateway.open(sampling={"stop": ["STOP"]})
    await text_of(await ask(gateway, slot))
    (call,) = await gateway.calls()
    (request,) = gateway.engine.requests
    assert call.cut_tokens > 0
    assert len(call.completion_ids) + call.cut_tokens == len(request.completion_ids)
    statistics = PrefixMerging(PrefixMerging.Options()).build("s1", [call]).statistics
    assert statistics["cut_tokens"] == call.cut_tokens
