"""A model call and its listeners; which requests are retries."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from polar.gateway.calls.call_service import retry_key
from polar.gateway.calls.model_call import ModelCall
from polar.gateway.dialects.base import ChatRequest, Reply
from polar.gateway.dialects.problems import Problem
from polar.types import Delta, ToolCall
from waiting import hang_limit

HEAD = Reply("s.1.1", 0, "polar", 3)
REPLY = msgspec.structs.replace(HEAD, finish_reason="stop", completion_tokens=1)


def a_call(linger_s: float = 0.0) -> ModelCall:
    slot: Any = None
    request = ChatRequest(messages=())
    return ModelCall(slot, request, dialect="openai_chat", kind="agent", key=b"key", linger_s=linger_s)


def key_of(dialect: str = "openai_chat", attribution: tuple[str, ...] = (), **request: Any) -> bytes:
    fields = {"messages": (), "items": (b"tools", b"first"), "rest": b"rest", **request}
    return retry_key(ChatRequest(**fields), dialect, attribution)


class Working:
    """A call whose work goes on until it is broken off."""

    def __init__(self, linger_s: float) -> None:
        self.call = a_call(linger_s)
        self.broken_off = asyncio.Event()
        self.call.start(self._work())

    async def _work(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.broken_off.set()


async def beat() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_tool_calls_get_ids_in_the_order_of_the_reply() -> None:
    call, bash = a_call(), ToolCall("bash", "{}")
    call.admitted(HEAD)
    call.say([Delta(tool_call=bash), Delta(content="and")])
    call.say([Delta(tool_call=bash)])
    assert [d.tool_call.call_id for d in call.deltas if d.tool_call] == ["call_s_1_1_0", "call_s_1_1_1"]


async def test_it_goes_on_while_somebody_listens_and_ends_after_the_last() -> None:
    working = Working(linger_s=0.01)
    with working.call.listener():
        with working.call.listener():
            pass
        await asyncio.sleep(0.03)
        assert not working.broken_off.is_set()
    async with hang_limit():
        await working.broken_off.wait()


async def test_who_comes_back_in_time_keeps_it_going() -> None:
    working = Working(linger_s=0.05)
    with working.call.listener():
        pass
    with working.call.listener():
        await asyncio.sleep(0.1)
        assert not working.broken_off.is_set()
    async with hang_limit():
        await working.broken_off.wait()


async def test_what_is_sampled_is_not_broken_off() -> None:
    working = Working(linger_s=0.0)
    await beat()
    working.call.sampled()
    working.call.break_off()
    await beat()
    assert not working.broken_off.is_set()


async def test_a_finished_call_does_not_linger() -> None:
    working = Working(linger_s=0.0)
    await beat()
    with working.call.listener():
        working.call.finish(REPLY)
    await asyncio.sleep(0.01)
    assert working.call.done and not working.broken_off.is_set()


async def test_every_change_is_news() -> None:
    call = a_call()
    heard = []
    for change in (
        lambda: call.say([Delta(content="hi")]),
        lambda: call.fail(Problem(502, "engine_error", "no")),
    ):
        news = call.news
        change()
        heard.append(news.done())
    assert heard == [True, True] and call.done and call.ended.done()


async def test_a_reply_is_opened_by_its_first_words() -> None:
    call = a_call()
    call.admitted(HEAD)
    assert not call.opened and not call.news.done()
    news = call.news
    call.say([Delta(content="hi")])
    assert call.opened and news.done()


async def test_a_reply_without_a_word_is_opened_after_a_moment() -> None:
    call = a_call()
    call.admitted(HEAD)
    async with hang_limit():
        await call.news
    assert call.opened and not call.done


async def test_the_last_words_go_with_the_end() -> None:
    call = a_call()
    call.admitted(HEAD)
    call.say([Delta(content="hi")])
    news = call.news
    call.say([Delta(content=" there")], last=True)
    assert not news.done() and len(call.deltas) == 2
    call.finish(REPLY)
    assert news.done() and call.ended.done()


async def test_saying_nothing_is_no_news() -> None:
    call = a_call()
    news = call.news
    call.say([])
    assert not news.done()


@pytest.mark.parametrize(
    "other",
    [
        key_of(rest=b"other"),
        key_of(items=(b"tools", b"second")),
        key_of(items=(b"tools", b"first", b"second")),
        key_of(dialect="anthropic"),
        key_of(attribution=("agent-2",)),
    ],
)
def test_different_requests_are_no_retries(other: bytes) -> None:
    assert other != key_of()


def test_a_retry_may_want_its_reply_streamed_or_whole() -> None:
    assert key_of(stream=True) == key_of(stream=False) == key_of()


def test_attributions_do_not_run_into_each_other() -> None:
    assert key_of(attribution=("a", "")) != key_of(attribution=("", "a"))
