"""A pool of replicas: what it costs a call, what a second replica gives, and what affinity saves.

    python benchmarks/pool.py [--calls 400] [--sessions 4] [--turns 4] [--only calls|prefixes]

Calls: stubs with vLLM's routes that answer after a fixed time and take a limited number of calls at once. One is
asked directly, through a pool of one, and two through a pool. Prefixes: two real llama.cpp servers with the
default model; sessions of several turns go to them by affinity, and in turns (round robin). The share of prompt
tokens that came from a prefix cache is what the servers report.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from in_flight import REPLY
from page import origin, table
from stub_server import Pace, StubEngine
from target_process import Process

from polar.engines.base import GenerateRequest, Piece
from polar.engines.pieces import joined
from polar.registry import make
from polar.types import Sampling, Spec, token_ids

LATENCY_S = 0.5
AT_ONCE = 16
"""Calls that one stub takes."""
TURN_TOKENS = 64
REPLY_TOKENS = 8


class Limited:
    """An engine that is asked directly, with as many calls at once as a replica of the pool gets."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._room = asyncio.Semaphore(AT_ONCE)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        async with self._room:
            async for piece in self._engine.generate(request):
                yield piece


class RoundRobin:
    """Each call goes to the next engine."""

    def __init__(self, engines: Sequence[Any]) -> None:
        self._engines = engines
        self._next = itertools.cycle(engines)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        return next(self._next).generate(request)

    def counters(self) -> dict[str, int]:
        names = ("evaluated_tokens", "cached_tokens")
        return {name: sum(engine.counters()[name] for engine in self._engines) for name in names}


def ask(ids: Sequence[int], session_id: str, max_tokens: int) -> GenerateRequest:
    return GenerateRequest(token_ids(ids), max_tokens, Sampling(temperature=0), (), session_id, seed=1)


async def all_calls(engine: Any, calls: int, workers: int) -> float:
    """Seconds for all."""
    left = iter(range(calls))

    async def work() -> None:
        for number in left:
            await joined(engine.generate(ask([500, 501, 502], f"session-{number % 64}", 32)))

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return time.perf_counter() - began


async def one_by_one(engine: Any, calls: int) -> float:
    """Processor time of this process for one call, in microseconds."""
    began = time.process_time()
    await all_calls(engine, calls, 1)
    return (time.process_time() - began) / calls * 1e6


def pool_of(*urls: str) -> Any:
    options = {"engine": "vllm", "urls": list(urls), "connections": AT_ONCE}
    return make("engine", Spec(name="pool", options=options))


async def measure_calls(calls: int, slow: Sequence[str], quick: str) -> str:
    rates: dict[str, float] = {}
    costs: dict[str, float] = {}
    kinds = {
        "one server, asked directly": (False, slow[:1]),
        "pool of one": (True, slow[:1]),
        "pool of two": (True, slow),
    }
    for kind, (pooled, urls) in kinds.items():
        for address, measured in ((urls, rates), ([quick], costs)):
            if measured is costs and len(urls) > 1:
                continue
            engine = (
                pool_of(*address) if pooled else make("engine", Spec(name="vllm", options={"url": address[0]}))
            )
            await engine.start()
            if measured is rates:
                asked = engine if pooled else Limited(engine)
                measured[kind] = calls / await all_calls(asked, calls, 3 * AT_ONCE)
            else:
                measured[kind] = min([await one_by_one(engine, 300) for _ in range(3)])
            await engine.stop()
    first, ceiling = rates["one server, asked directly"], AT_ONCE / LATENCY_S
    rows = [
        [
            kind,
            f"{rate:.0f}",
            f"{rate / first:.2f}",
            f"{rate / (ceiling * len(urls)):.0%}",
            f"{costs[kind]:.0f}" if kind in costs else "",
        ]
        for (kind, rate), (_, urls) in zip(rates.items(), kinds.values(), strict=True)
    ]
    head = ["", "calls/s", "of one server", "of what the servers can do", "µs of processor time for a call"]
    return table(head, rows)


async def turns_of(engine: Any, session: int, turns: int) -> None:
    ids = [1000 + session]
    for turn in range(turns):
        ids += [2000 + (session * 977 + turn * 131 + n * 7) % 40000 for n in range(TURN_TOKENS)]
        ids += (await joined(engine.generate(ask(ids, f"session-{session}", REPLY_TOKENS)))).ids.tolist()


async def prefix_share(engine: Any, sessions: int, turns: int) -> tuple[float, float]:
    """The share of prompt tokens from the cache, and the seconds for all."""
    before = engine.counters()
    began = time.perf_counter()
    await asyncio.gather(*(turns_of(engine, session, turns) for session in range(sessions)))
    took_s, after = time.perf_counter() - began, engine.counters()
    cached, computed = (after[name] - before[name] for name in ("cached_tokens", "evaluated_tokens"))
    return cached / (cached + computed), took_s


async def measure_prefixes(sessions: int, turns: int) -> str:
    spec = {"name": "embedded", "options": {"parallel": sessions, "context_tokens": 2048, "threads": 1}}
    spec["options"] |= {"share_prefixes": False}
    engines = [make("engine", Spec.model_validate(spec)) for _ in range(2)]
    for engine in engines:
        await engine.start()
    in_turns = await prefix_share(RoundRobin(engines), sessions, turns)
    for engine in engines:
        await engine.stop()
    pool = make("engine", Spec(name="pool", options={"replicas": [spec, spec]}))
    await pool.start()
    by_affinity = await prefix_share(pool, sessions, turns)
    await pool.stop()
    rows = [
        [kind, f"{share:.0%}", f"{took_s:.1f}"]
        for kind, (share, took_s) in (("affinity (pool)", by_affinity), ("round robin", in_turns))
    ]
    return table(["two llama.cpp servers", "prompt tokens from the cache", "s for all"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a pool of replicas costs and gives.")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--only", choices=["calls", "prefixes"])
    options = parser.parse_args()
    if options.only != "prefixes":
        stubs = [Process(StubEngine, [REPLY], Pace(latency_s=latency)) for latency in (LATENCY_S, LATENCY_S, 0.0)]
        try:
            one, two, quick = (stub.url for stub in stubs)
            print(asyncio.run(measure_calls(options.calls, (one, two), quick)), end="\n\n")
        finally:
            for stub in stubs:
                stub.stop()
    if options.only != "calls":
        print(asyncio.run(measure_prefixes(options.sessions, options.turns)), end="\n\n")
    print(origin(f"python benchmarks/pool.py --calls {options.calls} --sessions {options.sessions}"))


if __name__ == "__main__":
    main()
