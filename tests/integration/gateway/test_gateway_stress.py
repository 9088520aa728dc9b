"""Hundreds of clients that connect, read a little, cut and ask again, in every dialect and over several sessions:
at the end each question has one reply, every token is accounted for, and nothing is left open."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import orjson
import pytest
from playbook import Gateway, OpenGateway

from polar.builders.prefix_merging import PrefixMerging
from polar.engines.base import GenerateRequest, Piece
from polar.gateway.calls.model_call import ModelCall
from polar.testing import ScriptedEngine, ScriptedReply
from polar.types import Call, Slot
from waiting import hang_limit, until

SESSIONS = ("one", "two", "three", "four")
CLIENTS = 200
TEXT = "The answer to your question is a rather long sentence, so that there is something to cut."


class Question:
    """What one client wants to know, in its own dialect."""

    def __init__(self, number: int, slot: Slot) -> None:
        self.slot = slot
        self.text = f"Question number {number} of many."
        self.dialect = ("chat", "messages", "responses", "google")[number // len(SESSIONS) % 4]
        self.random = random.Random(number)

    def request(self) -> bytes:
        said = [{"role": "user", "content": self.text}]
        path, body = {
            "chat": ("/v1/chat/completions", {"model": "m", "messages": said, "stream": True}),
            "messages": ("/v1/messages", {"model": "m", "max_tokens": 500, "messages": said, "stream": True}),
            "responses": ("/v1/responses", {"model": "m", "input": said, "stream": True}),
            "google": (
                "/v1beta/models/m:streamGenerateContent?alt=sse",
                {"contents": [{"role": "user", "parts": [{"text": self.text}]}]},
            ),
        }[self.dialect]
        data = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.slot.key}\r\n"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data

    async def ask(self, read_bytes: int | None) -> bytes:
        """What comes of the reply: so many bytes and then a cut, rude or polite, or all of it."""
        host, port = self.slot.base_url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        if self.random.random() < 0.5:
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        try:
            writer.write(self.request())
            await writer.drain()
            if read_bytes is None:
                return await reader.readuntil(b"\r\n0\r\n\r\n")
            return await reader.read(read_bytes) if read_bytes else b""
        finally:
            writer.transport.abort() if self.random.random() < 0.3 else writer.close()


async def open_questions(gateway: Gateway) -> list[Question]:
    slots = [await gateway.open(name) for name in SESSIONS]
    return [Question(number, slots[number % len(slots)]) for number in range(CLIENTS)]


async def until_quiet(gateway: Gateway) -> None:
    """Until every connection is served and every generation has ended."""
    await until(lambda: not (gateway.engine.active or len(asyncio.all_tasks()) > 2))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_each_token_is_accounted_for(session_id: str, calls: list[Call]) -> None:
    trajectory = PrefixMerging(PrefixMerging.Options()).build(session_id, calls)
    trained = sum(trace.trainable_tokens for trace in trajectory.traces)
    dropped = sum(drop.length for drop in trajectory.dropped)
    assert trained + dropped == sum(len(call.completion_ids) for call in calls)
    by_call = Counter(span.call_id for trace in trajectory.traces for span in trace.spans)
    assert set(by_call.values()) <= {1}, "no call is trained twice"
    explained = {drop.call_id: drop.reason for drop in trajectory.dropped if drop.reason}
    for call in calls:
        assert (call.call_id in by_call) != (call.call_id in explained)
        # A question may be asked again after its reply came: of equal ones only the last is trained on.
        assert call.received == (call.call_id in by_call or explained[call.call_id] == "superseded")


def slow_down(engine: ScriptedEngine) -> None:
    """Lets a reply take some turns of the event loop, so that it can be cut in its middle."""
    at_once = engine.generate

    async def generate(request: GenerateRequest) -> AsyncGenerator[Piece]:
        async with aclosing(at_once(request)) as pieces:
            async for piece in pieces:
                await asyncio.sleep(0.004)
                yield piece

    engine.generate = generate  # pyright: ignore[reportAttributeAccessIssue]


@pytest.fixture(scope="module", autouse=True)
def quiet_files() -> None:
    """Garbage of other tests may hold files that would be closed while these are counted."""
    gc.collect()


async def test_every_question_has_one_reply_however_often_it_is_cut(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(lambda turn, ids: ScriptedReply(text=TEXT, block_after=6), linger_s=60)
    questions = await open_questions(gateway)
    before = open_files()

    async def cut_often(question: Question) -> None:
        for _ in range(question.random.randrange(1, 6)):
            await question.ask(question.random.choice((0, 1, 30, 200)))
            await asyncio.sleep(question.random.random() * 0.02)

    await asyncio.gather(*map(cut_often, questions))
    final = [asyncio.create_task(question.ask(None)) for question in questions]
    await asyncio.sleep(0.2)
    gateway.engine.release()
    replies = await asyncio.gather(*final)
    assert all(b"something to cut" in reply for reply in replies)
    await until_quiet(gateway)
    assert len(gateway.engine.requests) == CLIENTS, "nothing is sampled twice"
    for name in SESSIONS:
        await gateway.slots.seal(name)
        calls = await gateway.calls(name)
        assert [call.received for call in calls] == [True] * (CLIENTS // len(SESSIONS))
        assert len({call.new_messages[0].content for call in calls}) == len(calls), "one call for each question"
        assert_each_token_is_accounted_for(name, calls)
    await until_quiet(gateway)
    assert open_files() <= before


async def test_cuts_at_any_moment_leave_nothing_open_and_nothing_unexplained(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(lambda turn, ids: TEXT, linger_s=0.01)
    slow_down(gateway.engine)
    questions = await open_questions(gateway)
    before = open_files()

    async def ask_until_answered(question: Question) -> None:
        for _ in range(question.random.randrange(0, 4)):
            await question.ask(question.random.choice((0, 1, 30, 200, 1000, 2000)))
            await asyncio.sleep(question.random.random() * 0.03)
        assert (await question.ask(None)).startswith(b"HTTP/1.1 200")

    await asyncio.gather(*map(ask_until_answered, questions))
    await until_quiet(gateway)
    for name in SESSIONS:
        slot = gateway.slots._by_session[name]  # pyright: ignore[reportPrivateUsage]
        await gateway.slots.seal(name)
        calls = await gateway.calls(name)
        assert_each_token_is_accounted_for(name, calls)
        for call in calls:
            assert not (call.received and call.finish_reason == "aborted")
        answered = {call.new_messages[0].content for call in calls if call.received}
        assert len(answered) == CLIENTS // len(SESSIONS)
        assert sum(len(call.completion_ids) for call in calls) == slot.sampled_tokens
        assert slot.unreceived == {}, "what was cut was asked for again, and given"
        await gateway.slots.close(name)
    await until_quiet(gateway)
    assert open_files() <= before
    del slot
    gc.collect()
    # `type`, not `isinstance`: that asks every object for its class, and some of other packages warn then.
    assert not [item for item in gc.get_objects() if type(item) is ModelCall]


async def test_what_is_sealed_in_the_middle_of_it_does_not_change_any_more(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(lambda turn, ids: TEXT, linger_s=0.01)
    slow_down(gateway.engine)
    # They ask as fast as they can until they are refused: a few are enough to keep the gateway busy.
    questions = (await open_questions(gateway))[: CLIENTS // 5]

    async def ask_until_sealed(question: Question) -> None:
        while True:
            reply = await question.ask(question.random.choice((30, 1000, 100_000)))
            if reply.startswith(b"HTTP/1.1 400"):
                return

    asking = asyncio.gather(*map(ask_until_sealed, questions))
    sealed: dict[str, list[Call]] = {}
    for name in SESSIONS:
        async with hang_limit():
            while len(await gateway.calls(name)) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await gateway.slots.seal(name)
        sealed[name] = await gateway.calls(name)
        assert_each_token_is_accounted_for(name, sealed[name])
    async with hang_limit():
        await asking
    await until_quiet(gateway)
    for name, calls in sealed.items():
        assert await gateway.calls(name) == calls
