"""A generation and those who listen to it."""

from __future__ import annotations

import asyncio

import pytest

from polar.gateway.calls.generation import Asked, Generation
from polar.gateway.dialects.base import ChatRequest, Problem, Reply, ReplyHead
from polar.types import Delta, Message
from waiting import hang_limit

HEAD = ReplyHead("s.1.1", 0, "polar", 3)
REPLY = Reply(HEAD, Message(role="assistant"), (), "stop", 1, 0)


def asked(dialect: str = "openai_chat", attribution: tuple[str, ...] = (), **request) -> Asked:
    fields = {"messages": (), "items": (b"tools", b"first"), "rest": b"rest", **request}
    return Asked(ChatRequest(**fields), dialect, "agent", attribution)


class Working:
    """A generation whose work goes on until it is broken off."""

    def __init__(self, linger_s: float) -> None:
        self.generation = Generation(asked(), b"key", linger_s)
        self.broken_off = asyncio.Event()
        self.generation.start(self._work())

    async def _work(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.broken_off.set()


async def beat() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_it_goes_on_while_somebody_listens_and_ends_after_the_last() -> None:
    working = Working(linger_s=0.01)
    with working.generation.listener():
        with working.generation.listener():
            pass
        await asyncio.sleep(0.03)
        assert not working.broken_off.is_set()
    async with hang_limit():
        await working.broken_off.wait()


async def test_who_comes_back_in_time_keeps_it_going() -> None:
    working = Working(linger_s=0.05)
    with working.generation.listener():
        pass
    with working.generation.listener():
        await asyncio.sleep(0.1)
        assert not working.broken_off.is_set()
    async with hang_limit():
        await working.broken_off.wait()


async def test_what_is_sampled_is_not_broken_off() -> None:
    working = Working(linger_s=0.0)
    await beat()
    working.generation.sampled()
    working.generation.break_off()
    await beat()
    assert not working.broken_off.is_set()


async def test_one_that_is_done_lingers_for_nobody() -> None:
    working = Working(linger_s=0.0)
    await beat()
    with working.generation.listener():
        working.generation.finish(REPLY)
    await asyncio.sleep(0.01)
    assert working.generation.done and not working.broken_off.is_set()


async def test_every_change_is_news() -> None:
    generation = Generation(asked(), b"key", 0.0)
    heard = []
    for change in (
        lambda: generation.say([Delta(content="hi")]),
        lambda: generation.fail(Problem(502, "engine_error", "no")),
    ):
        news = generation.news
        change()
        heard.append(news.done())
    assert heard == [True, True] and generation.done and generation.ended.done()


async def test_a_reply_is_opened_by_its_first_words() -> None:
    generation = Generation(asked(), b"key", 0.0)
    generation.admitted(HEAD)
    assert not generation.opened and not generation.news.done()
    news = generation.news
    generation.say([Delta(content="hi")])
    assert generation.opened and news.done()


async def test_a_reply_without_a_word_is_opened_after_a_moment() -> None:
    generation = Generation(asked(), b"key", 0.0)
    generation.admitted(HEAD)
    async with hang_limit():
        await generation.news
    assert generation.opened and not generation.done


async def test_the_last_words_go_with_the_end() -> None:
    generation = Generation(asked(), b"key", 0.0)
    generation.admitted(HEAD)
    generation.say([Delta(content="hi")])
    news = generation.news
    generation.say([Delta(content=" there")], last=True)
    assert not news.done() and len(generation.deltas) == 2
    generation.finish(REPLY)
    assert news.done() and generation.ended.done()


async def test_saying_nothing_is_no_news() -> None:
    generation = Generation(asked(), b"key", 0.0)
    news = generation.news
    generation.say([])
    assert not news.done()


@pytest.mark.parametrize(
    "other",
    [
        asked(rest=b"other"),
        asked(items=(b"tools", b"second")),
        asked(items=(b"tools", b"first", b"second")),
        asked(dialect="anthropic"),
        asked(attribution=("agent-2",)),
    ],
)
def test_different_questions_are_no_twins(other: Asked) -> None:
    assert other.twin_key != asked().twin_key


def test_a_retry_is_told_by_what_it_asks_not_by_how_it_wants_the_reply() -> None:
    assert asked(stream=True).twin_key == asked(stream=False).twin_key == asked().twin_key


def test_attributions_do_not_run_into_each_other() -> None:
    assert asked(attribution=("a", "")).twin_key != asked(attribution=("", "a")).twin_key
