"""One session cannot stop its neighbours, whatever it sends.

A ticker counts on the gateway's own event loop while a hostile session sends long texts and a neighbour makes
ordinary calls. Time is the CPU time of this process, so that other programs on the machine change no verdict. The
measure is what a plain `Tokenizer.encode` of 0.4 MB takes here, which holds the interpreter from start to end.
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import orjson
import pytest
from playbook import Gateway, OpenGateway

from polar.types import Slot

LOGGER = logging.getLogger(__name__)
MEGABYTES = (0.4, 5, 31)
WORDS, NO_SPACES, DIGITS, SPACES = "the quick brown fox ", "abcdefghij", "0123456789", " "
TICK_S = 0.002


class Ticker:
    """Counts as often as the event loop lets it, and keeps the longest CPU time between two counts."""

    def __init__(self) -> None:
        self.ticks = 0
        self.longest_s = 0.0

    async def run(self) -> None:
        last_s = time.process_time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.process_time()
            self.longest_s = max(self.longest_s, now_s - last_s)
            self.ticks += 1
            last_s = now_s


@pytest.fixture(autouse=True)
def nothing_else_to_collect() -> Iterator[None]:
    """As in a node (`runs/event_loop.py`): a full collection must not look at what other tests have imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def asked(content: str) -> bytes:
    return orjson.dumps({"model": "polar", "messages": [{"role": "user", "content": content}]})


def said(text: str) -> Callable[[int], bytes]:
    return lambda size: asked(text * (size // len(text)))


def deep_json(size: int) -> bytes:
    tool = b'{"type":"function","function":{"name":"t","parameters":{"a":[%s[]]}}}' % (b"[[[]]]," * (size // 7))
    return b'{"model":"polar","messages":[{"role":"user","content":"Hi"}],"tools":[%s]}' % tool


def many_messages(size: int) -> bytes:
    messages = [{"role": "user", "content": WORDS * 50}] * (size // 1040)
    return orjson.dumps({"model": "polar", "messages": messages})


def many_tools(size: int) -> bytes:
    tools = [
        {"type": "function", "function": {"name": f"t{n}", "description": WORDS * 50, "parameters": {}}}
        for n in range(size // 1100)
    ]
    return orjson.dumps({"model": "polar", "messages": [{"role": "user", "content": "Hi"}], "tools": tools})


def arguments(size: int) -> bytes:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "t", "arguments": f'{{"a":[{"[]," * (size // 3)}1]}}'},
    }
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Done."},
    ]
    return orjson.dumps({"model": "polar", "messages": messages})


SHAPES: dict[str, Callable[[int], bytes]] = {
    "words": said(WORDS),
    "no_spaces": said(NO_SPACES),
    "digits": said(DIGITS),
    "spaces": lambda size: asked(f"a{SPACES * size}b"),
    "deep_json": deep_json,
    "many_messages": many_messages,
    "many_tools": many_tools,
    "arguments": arguments,
}


def post(slot: Slot, path: str, body: bytes) -> int:
    """With a blocking client, which a thread runs: the event loop under test is the gateway's alone."""
    connection = http.client.HTTPConnection(urlsplit(slot.base_url).netloc)
    try:
        connection.request("POST", path, body, {"authorization": f"Bearer {slot.key}"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


async def beside(gateway: Gateway, hostile: Callable[[], object]) -> tuple[Ticker, int]:
    """Runs the hostile work in a thread, a ticker and a neighbour's calls beside it; gives the calls served."""
    neighbour, ticker, calls = await gateway.open("neighbour"), Ticker(), 0
    ticking = asyncio.create_task(ticker.run())
    with ThreadPoolExecutor(1) as pool:
        attack = asyncio.get_running_loop().run_in_executor(pool, hostile)
        while calls == 0 or not attack.done():
            question = {"model": "polar", "messages": [{"role": "user", "content": f"Call {calls}."}]}
            assert (await gateway.post(neighbour, question))[0] == 200
            calls += 1
        await attack
    ticking.cancel()
    return ticker, calls


def plain_encode_s(gateway: Gateway) -> float:
    """CPU time of the call that holds the interpreter, for the smallest of the texts."""
    tokenizer = gateway.renderer._vocabulary.encoder._tokenizer
    text = DIGITS * 40_000
    start_s = time.process_time()
    tokenizer.encode(text, add_special_tokens=False)
    return time.process_time() - start_s


@pytest.mark.parametrize(
    ("shape", "context_tokens"),
    [*((shape, 8192) for shape in SHAPES), ("words", 131_072), ("deep_json", 131_072), ("many_tools", 131_072)],
)
async def test_a_hostile_session_does_not_stop_the_event_loop(
    open_gateway: OpenGateway, shape: str, context_tokens: int
) -> None:
    gateway = await open_gateway(lambda *_: "Fine.", context_tokens=context_tokens)
    slot = await gateway.open("hostile")
    bodies = [SHAPES[shape](int(size * 1e6)) for size in MEGABYTES]

    def hostile() -> None:
        for body in bodies:
            assert post(slot, "/v1/chat/completions", body) in (200, 400, 413)
        assert post(slot, "/v1/messages/count_tokens", bodies[1]) in (200, 400, 413)

    ticker, calls = await beside(gateway, hostile)
    LOGGER.info("%d ticks, %d calls, %.3f s the longest gap", ticker.ticks, calls, ticker.longest_s)
    assert ticker.longest_s < plain_encode_s(gateway)
    assert len(await gateway.calls("neighbour")) == calls
