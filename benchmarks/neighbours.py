"""What a hostile session can do to its neighbours at the gateway.

    python benchmarks/neighbours.py [--megabytes 0.4 5 31] [--context 8192 131072] [--write]

One session sends a text of each size and shape, in a thread with a client that blocks, while another makes
ordinary calls and a ticker counts on the gateway's event loop, every two milliseconds. The longest stall is the
longest time between two counts, on the clock and in CPU time of the process, which other programs do not add to.
The gateway is the real one, with the SmolLM2 vocabulary; its engine answers at once.
`--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson
from page import origin, table, write_section

from polar.config import GatewayConfig
from polar.engines.base import EngineInfo
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.threads import CallThreads
from polar.gateway.calls.token_mode import TokenMode
from polar.gateway.http.handler import Service
from polar.gateway.http.routes import gateway_app
from polar.gateway.http.server import GatewayServer
from polar.gateway.slots import SlotTable
from polar.store.journal import Journal
from polar.testing import ScriptedEngine
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import CallProfile, Lease, Session, Slot, TaskRequest

TICK_S = 0.002
PATH = "/v1/chat/completions"
HEAD = (
    "context, tokens",
    "text",
    "MB",
    "answer",
    "after, ms",
    "longest stall, ms",
    "in CPU time, ms",
    "neighbour's calls",
)


def asked(content: str, tools: list[object] | None = None) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": content}], "tools": tools or []})


def with_tools(size: int) -> bytes:
    function = {"description": "the quick brown fox " * 50, "parameters": {}}
    tools = [{"type": "function", "function": {"name": f"t{n}", **function}} for n in range(size // 1100)]
    return asked("Hi", list(tools))


def nested(size: int) -> bytes:
    return asked("Hi").replace(b'"tools":[]', b'"metadata":[%s[]]' % (b"[[[]]]," * (size // 7)))


SHAPES: dict[str, Callable[[int], bytes]] = {
    "words": lambda size: asked("the quick brown fox " * (size // 20)),
    "no spaces": lambda size: asked("abcdefghij" * (size // 10)),
    "digits": lambda size: asked("0123456789" * (size // 10)),
    "nested JSON": nested,
    "many tools": with_tools,
}


class Ticker:
    def __init__(self) -> None:
        self.longest_s = self.longest_cpu_s = 0.0

    async def run(self) -> None:
        last_s, last_cpu_s = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s, now_cpu_s = time.perf_counter(), time.process_time()
            self.longest_s = max(self.longest_s, now_s - last_s)
            self.longest_cpu_s = max(self.longest_cpu_s, now_cpu_s - last_cpu_s)
            last_s, last_cpu_s = now_s, now_cpu_s


class Bench(NamedTuple):
    slots: SlotTable
    journal: Journal
    context_tokens: int

    async def open(self, session_id: str) -> Slot:
        session = Session(session_id=session_id, task_id="t", index=0)
        lease = Lease(session=session, task=TaskRequest(instruction="go"))
        await self.journal.add_session(lease)
        return await self.slots.open(lease, CallProfile())


async def open_bench(stack: AsyncExitStack, renderer: SmolLM2Renderer, context_tokens: int) -> Bench:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    info = EngineInfo("scripted", "script", context_tokens, "raw", parallel=8, constrains=True)
    vocabulary = renderer._vocabulary  # pyright: ignore[reportPrivateUsage]
    engine = ScriptedEngine(vocabulary, lambda *_: "Fine.", info=info)
    journal = await stack.enter_async_context(await Journal.open(folder / "journal.db"))
    slots, config = SlotTable(journal, "polar", context_tokens), GatewayConfig()
    started = await engine.start()
    service = CallService(TokenMode(renderer, engine, started), PolicyGate(), started, journal, "polar")
    server = GatewayServer(gateway_app(Service(slots, service, config, CallThreads())), config)
    slots.base_url, slots.listeners = server.base_url, server.listeners
    await server.start()
    stack.push_async_callback(server.stop)
    return Bench(slots, journal, context_tokens)


def post(slot: Slot, body: bytes) -> tuple[int, float]:
    """The status and the seconds until it came. In a thread: the event loop is the gateway's alone."""
    connection, start_s = http.client.HTTPConnection(urlsplit(slot.base_url).netloc), time.perf_counter()
    try:
        connection.request("POST", PATH, body, {"authorization": f"Bearer {slot.key}"})
        response = connection.getresponse()
        response.read()
        return response.status, time.perf_counter() - start_s
    finally:
        connection.close()


async def measure(bench: Bench, shape: str, megabytes: float) -> list[str]:
    name = f"{shape}-{megabytes}".replace(" ", "-")
    hostile, neighbour = await bench.open(name), await bench.open(f"{name}-neighbour")
    ticker, calls, body = Ticker(), 0, SHAPES[shape](int(megabytes * 1e6))
    ticking = asyncio.create_task(ticker.run())
    attack = asyncio.create_task(asyncio.to_thread(post, hostile, body))
    while not attack.done():
        status, _ = await asyncio.to_thread(post, neighbour, asked(f"Call {calls}."))
        assert status == 200, f"the neighbour's call was answered with {status}"
        calls += 1
    ticking.cancel()
    status, answered_s = await attack
    figures = (answered_s, ticker.longest_s, ticker.longest_cpu_s)
    cells = [f"{bench.context_tokens}", shape, f"{megabytes:g}", f"{status}"]
    return [*cells, *(f"{figure * 1000:.0f}" for figure in figures), f"{calls}"]


async def measure_all(megabytes: list[float], contexts: list[int]) -> list[list[str]]:
    renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
    await renderer.load()
    rows: list[list[str]] = []
    for context_tokens in contexts:
        async with AsyncExitStack() as stack:
            bench = await open_bench(stack, renderer, context_tokens)
            rows += [await measure(bench, shape, size) for shape in SHAPES for size in megabytes]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.4, 5, 31])
    parser.add_argument("--context", type=int, nargs="+", default=[8192, 131_072])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = asyncio.run(measure_all(options.megabytes, options.context))
    sizes, contexts = (
        " ".join(f"{value:g}" for value in values) for values in (options.megabytes, options.context)
    )
    command = f"python benchmarks/neighbours.py --megabytes {sizes} --context {contexts}"
    text = f"{table(HEAD, rows)}\n\n{origin(command)}"
    print(text)
    if options.write:
        write_section("neighbours", text)


if __name__ == "__main__":
    main()
