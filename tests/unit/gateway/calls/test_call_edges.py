"""Calls at their edges: retries at every moment of a call's life, ends that come at a bad moment, and faults of
our own, which a harness gets in its provider's shape."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from polar.config import GatewayConfig
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.model_call import ModelCall
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.threads import CallThreads
from polar.gateway.calls.token_mode import TokenMode
from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.base import Dialect
from polar.gateway.dialects.google import Google
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_completions import OpenAICompletions
from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.gateway.http.connection import AsgiMessage, Connection
from polar.gateway.http.delivery import Delivery
from polar.gateway.http.handler import ModelRoute, Service
from polar.gateway.slots import OpenSlot, SlotTable
from polar.store.journal import Journal
from polar.testing import Script, ScriptedEngine, ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.tokens.replies.reply_text import parse_tool_calls
from polar.types import CallProfile, Lease, Message, Retention, Session, TaskRequest, TokenIds, Tool
from waiting import HANG_S, hang_limit, until

DIALECTS: list[Dialect] = [Anthropic(), OpenAIChat(), OpenAICompletions(), OpenAIResponses(), Google()]
LONG = "word " * 2000
"""So much text that it is rendered in a thread."""


class Desk:
    """A call service with one open slot, without HTTP."""

    def __init__(self, calls: CallService, slots: SlotTable, slot: OpenSlot, engine: ScriptedEngine) -> None:
        self.calls, self.slots, self.slot, self.engine = calls, slots, slot, engine

    def ask(self, text: str = "Hello.", linger_s: float = 60.0) -> ModelCall:
        request = OpenAIChat().parse(RawRequest({"messages": [{"role": "user", "content": text}]}))
        return self.calls.receive(self.slot, request, "openai_chat", linger_s=linger_s)

    def route(self, dialect: Dialect) -> ModelRoute:
        return ModelRoute(dialect, Service(self.slots, self.calls, GatewayConfig(), CallThreads()))


OpenDesk = Callable[..., Awaitable[Desk]]


@pytest.fixture
async def open_desk(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncGenerator[OpenDesk]:
    async with await Journal.open(tmp_path / "journal.db") as journal:

        async def open_one(script: Script, *, renderer: Any = smollm2, **budgets: int) -> Desk:
            engine = ScriptedEngine(smollm2._vocabulary, script)  # pyright: ignore[reportPrivateUsage]
            slots = SlotTable(journal, "polar", 8192)
            info = await engine.start()
            calls = CallService(TokenMode(renderer, engine, info), PolicyGate(), info, journal, "polar")
            task = TaskRequest.model_validate({"instruction": "go", "budgets": budgets})
            lease = Lease(session=Session(session_id="s", task_id="t", index=0), task=task)
            await journal.add_session(lease)
            slot = slots.find((await slots.open(lease, CallProfile())).key)
            assert slot is not None
            return Desk(calls, slots, slot, engine)

        yield open_one


class Client:
    """The server's side of a client: it may leave, and what it is sent after that is dropped without a word."""

    def __init__(self, body: Any = None) -> None:
        self.sent: list[AsgiMessage] = []
        self._left = asyncio.Event()
        self._body = [] if body is None else [orjson.dumps(body)]

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> AsgiMessage:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: AsgiMessage) -> None:
        if not self._left.is_set():
            self.sent.append(message)

    @property
    def status(self) -> int:
        return self.sent[0]["status"]

    @property
    def ended(self) -> bool:
        return not self.sent[-1].get("more_body", True)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class TestTwins:
    async def test_one_joins_at_every_moment_until_the_reply_is_handed_over(self, open_desk: OpenDesk) -> None:
        desk = await open_desk([ScriptedReply(text="One for all.", block_after=2), "Another."])
        first = desk.ask()
        assert desk.ask() is first, "not begun"
        await until(lambda: first.reply)
        assert desk.ask() is first, "admitted"
        await until(lambda: first.deltas)
        assert desk.ask() is first, "being sampled"
        async with desk.slot.lock:  # which the commit needs
            desk.engine.release()
            await until(lambda: desk.engine.active == 0)
            await asyncio.sleep(0)
            assert desk.ask() is first and not first.replied, "being kept"
        await until(lambda: first.done)
        assert desk.ask() is first, "made and not handed over"
        desk.slot.forget(first)
        assert desk.ask() is not first

    async def test_none_joins_what_is_being_broken_off(self, open_desk: OpenDesk) -> None:
        desk = await open_desk([ScriptedReply(text="Never heard.", block_after=2), "Fresh."])
        first = desk.ask()
        await until(lambda: first.deltas)
        first.break_off()
        second = desk.ask()
        assert second is not first
        await until(lambda: first.done and second.done)
        assert first.problem is not None and second.replied
        assert desk.ask() is second, "the end of the first does not take the place of the second"

    async def test_after_sealing_there_is_nothing_to_join(self, open_desk: OpenDesk) -> None:
        desk = await open_desk([ScriptedReply(text="Never heard.", block_after=2)])
        first = desk.ask()
        await until(lambda: first.deltas)
        await desk.slot.seal()
        late = desk.ask()
        await until(lambda: late.done)
        assert late.problem is not None and late.problem.code == "session_sealed"
        (call,) = await desk.slots.calls("s")
        assert call.finish_reason == "aborted"


class TestMemory:
    async def test_what_failed_or_was_refused_is_not_kept(self, open_desk: OpenDesk) -> None:
        desk = await open_desk(lambda turn, ids: ScriptedReply(error="no"), max_calls=5)
        for number in range(10):
            call = desk.ask(f"Question {number}.")
            await until(lambda call=call: call.done)
        assert desk.slot.unreceived == {}

    async def test_nothing_of_a_call_that_was_handed_over_stays_but_its_record(self, open_desk: OpenDesk) -> None:
        desk = await open_desk(lambda turn, ids: "Fine.")
        for number in range(20):
            client = Client(
                {"messages": [{"role": "user", "content": f"Question {number}."}], "stream": number % 2 == 1}
            )
            await desk.route(OpenAIChat())(scope_of(desk), client.receive, client.send)
            assert client.status == 200 and client.ended
        gc.collect()
        # `type`, not `isinstance`: that asks every object for its class, and some of other packages warn then.
        assert [item for item in gc.get_objects() if type(item) is ModelCall] == []
        assert [call.received for call in await desk.slots.calls("s")] == [True] * 20


def scope_of(desk: Desk) -> dict[str, Any]:
    key = f"Bearer {desk.slot.key}".encode()
    return {"type": "http", "headers": [(b"authorization", key)], "query_string": b"", "path_params": {}}


class TestReceived:
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("turns", range(3))
    async def test_what_was_dropped_was_not_received_whenever_the_client_left(
        self, stream: bool, turns: int
    ) -> None:
        """It leaves so many turns of the event loop after the end began to be written."""
        client = Client()
        connection = Connection(client.receive, client.send)
        connection.watch()
        await asyncio.sleep(0)
        whole = connection.finish_stream(b"end") if stream else connection.respond(200, b"end", {})
        writing = asyncio.create_task(whole)
        if turns == 0:  # in the same turn as the first write, just before it
            client.leave()
        for _ in range(turns):
            await asyncio.sleep(0)
        client.leave()
        assert await writing == (client.body == b"end")
        await connection.close()

    async def test_a_session_is_read_only_when_what_was_received_is_written_down(
        self, open_desk: OpenDesk
    ) -> None:
        desk = await open_desk(["The last word."])
        call = desk.ask()
        await until(lambda: call.done)
        client = Client()
        delivery = Delivery(desk.calls, Connection(client.receive, client.send), call)
        async with desk.slot.lock:  # a call beside it is being prepared
            delivering = asyncio.create_task(delivery.send(OpenAIChat(), call.request, GatewayConfig()))
            await until(lambda: client.sent and client.ended)
            async with asyncio.timeout(20):
                await desk.slot.seal()
            assert [call.received for call in await desk.slots.calls("s")] == [True]
        assert await delivering

    async def test_a_client_that_does_not_read_does_not_hold_sealing_up(self, open_desk: OpenDesk) -> None:
        desk = await open_desk(["The last word."])
        call = desk.ask()
        await until(lambda: call.done)
        stuck = asyncio.Event()

        async def send(message: AsgiMessage) -> None:
            stuck.set()
            await asyncio.Event().wait()

        delivery = Delivery(desk.calls, Connection(Client().receive, send), call)
        delivering = asyncio.create_task(delivery.send(OpenAIChat(), call.request, GatewayConfig()))
        await stuck.wait()
        async with hang_limit():
            await desk.slot.seal()
        assert not await delivering
        assert [call.received for call in await desk.slots.calls("s")] == [False]


class WaitingRenderer:
    """Hands everything to the real one, and renders only when the test lets it go on."""

    def __init__(self, inner: SmolLM2Renderer) -> None:
        self._inner = inner
        self.go_on = threading.Event()
        self.at_once = 0
        self.most_at_once = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def retaining(self, _: Retention) -> WaitingRenderer:
        return self

    def bounded(self, _: int) -> WaitingRenderer:
        return self

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            assert self.go_on.wait(HANG_S)
            return self._inner.render(messages, tools)
        finally:
            self.at_once -= 1


class TestThreads:
    async def test_a_renderer_is_never_entered_twice_though_a_call_is_broken_off_in_it(
        self, open_desk: OpenDesk, smollm2: SmolLM2Renderer
    ) -> None:
        renderer = WaitingRenderer(smollm2)
        desk = await open_desk(lambda turn, ids: "Fine.", renderer=renderer)
        first = desk.ask(LONG)
        await until(lambda: renderer.at_once)
        first.break_off()
        second = desk.ask("Something else.")
        await asyncio.sleep(0.05)
        renderer.go_on.set()
        await until(lambda: first.done and second.done)
        assert renderer.most_at_once == 1
        assert first.problem is not None and second.replied

    async def test_work_that_fails_fails_for_whoever_waits(self) -> None:
        def fail() -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await CallThreads().run(fail)


async def test_a_busy_engine_costs_no_call_of_the_budget(open_desk: OpenDesk) -> None:
    desk = await open_desk(
        [ScriptedReply(busy_s=1.0), ScriptedReply(busy_s=1.0), "Fine.", "Too much."], max_calls=1
    )
    ends = []
    for _ in range(4):
        call = desk.ask()
        await until(lambda call=call: call.done)
        desk.slot.forget(call)
        ends.append(call.problem.code if call.problem else "answered")
    assert ends == ["engine_busy", "engine_busy", "answered", "budget_exhausted"]


async def test_calls_that_are_sampled_at_once_share_one_budget(open_desk: OpenDesk) -> None:
    text = "one two three four five six seven"
    desk = await open_desk(lambda turn, ids: ScriptedReply(text=text, block_after=0), max_tokens=7)
    asked = [desk.ask(f"Question {number}.") for number in range(3)]
    await until(lambda: desk.engine.active == 3)
    desk.engine.release()
    await until(lambda: all(call.done for call in asked))
    calls = await desk.slots.calls("s")
    assert sum(len(call.completion_ids) for call in calls) == 7 == desk.slot.sampled_tokens


class Faulty(OpenAIChat):
    """A dialect with a fault of ours in it."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name == self._method:
            raise RuntimeError("a fault of ours")
        return super().__getattribute__(name)


class TestFaultsOfOurs:
    @pytest.mark.parametrize(("method", "stream"), [("parse", False), ("reply", False), ("encoder", True)])
    async def test_they_are_written_in_the_providers_format(
        self, open_desk: OpenDesk, method: str, stream: bool
    ) -> None:
        desk = await open_desk(["Fine."])
        client = Client({"messages": [{"role": "user", "content": "Hello."}], "stream": stream})
        await desk.route(Faulty(method))(scope_of(desk), client.receive, client.send)
        assert client.status == 500 and client.ended
        assert orjson.loads(client.body)["error"]["code"] == "gateway_error"
        assert dict(client.sent[0]["headers"])[b"x-should-retry"] == b"false"
        refusal = desk.slot.outcome.refusal
        assert refusal and refusal.cause
        assert (refusal.cause.where, refusal.cause.message) == ("gateway", "a fault of ours")

    async def test_in_the_middle_of_a_stream_they_cut_it(
        self, open_desk: OpenDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk = await open_desk(["Fine."])
        dialect = OpenAIChat()
        encoder_of = dialect.encoder

        def encoder(*args: Any) -> Any:
            made = encoder_of(*args)
            monkeypatch.setattr(made, "end", lambda _: 1 / 0)
            return made

        monkeypatch.setattr(dialect, "encoder", encoder)
        client = Client({"messages": [{"role": "user", "content": "Hello."}], "stream": True})
        await desk.route(dialect)(scope_of(desk), client.receive, client.send)
        assert client.status == 200 and not client.ended
        assert desk.slot.outcome.failures
        assert [call.received for call in await desk.slots.calls("s")] == [False]


def test_arguments_that_no_dialect_could_write_as_an_object_stay_text() -> None:
    text = '<tool_call>{"name": "bash", "arguments": ' + '{"a":' * 300 + "1" + "}" * 300 + "}</tool_call>"
    message = parse_tool_calls(text)
    assert (message.content, message.tool_calls) == (text, ())


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
class TestErrors:
    @pytest.mark.parametrize("digits", ["429", "500", "50000", "1502", "503", "504"])
    def test_a_final_one_has_no_digits_that_look_like_a_status_to_retry(
        self, dialect: Dialect, digits: str
    ) -> None:
        where = f"contents[{digits}].parts"
        error = dialect.error(Problem(400, "invalid_request", f"{where} must be a list", param=where))
        said = orjson.loads(error.body)["error"]
        said.pop("param", None)  # no part of the text that a client makes of it
        assert not re.search(r"429|50[0234]", orjson.dumps(said).decode())
        assert error.headers["x-should-retry"] == "false"

    def test_one_that_may_pass_says_when_to_ask_again(self, dialect: Dialect) -> None:
        error = dialect.error(Problem(429, "engine_busy", "busy until 500", retry=True, retry_after_s=7.0))
        assert error.status == 429
        assert (error.headers["x-should-retry"], error.headers["retry-after"]) == ("true", "7")
        assert b"busy until 500" in error.body
