"""Two real llama.cpp servers behind one pool, one of which is killed in the middle of the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from llama_program import CONTEXT_TOKENS, LlamaProgram
from replica_servers import QUICK, session_of

from contracts.engine_contract import EngineContract, SchemaContract, ask, whole
from polar.engines.base import EngineInfo
from polar.errors import EngineError
from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Spec
from waiting import HANG_S, hang_limit, until

pytestmark = [pytest.mark.check, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def both(gguf: Path) -> AsyncIterator[list[LlamaProgram]]:
    programs = [LlamaProgram(gguf), LlamaProgram(gguf)]
    await asyncio.gather(*(program.start() for program in programs))
    yield programs
    for program in programs:
        await program.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(both: list[LlamaProgram]) -> AsyncIterator[tuple[Any, EngineInfo]]:
    """One pool for all: its start tests both replicas, and takes longest. Who kills one starts it again."""
    urls = [program.url for program in both]
    unhurried = {"start_wait_s": HANG_S, "check_timeout_s": HANG_S}  # a busy machine loses no replica
    pool = make("engine", Spec(name="pool", options={"engine": "llamacpp", "urls": urls, **QUICK, **unhurried}))
    yield pool, await pool.start()
    await pool.stop()


@pytest.fixture
def prompt(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.encode_layout("<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n")


class TestPoolOfLlamas(EngineContract, SchemaContract):
    async def test_it_describes_both(self, info: EngineInfo, gguf: Path) -> None:
        assert (info.name, info.model, info.logprob_mode) == ("llamacpp", gguf.name, "raw")
        assert (info.context_tokens, info.parallel) == (CONTEXT_TOKENS, 4)


class Work:
    """Sessions of several turns, each of which goes on from the tokens of the one before."""

    def __init__(self, pool: Any, prompt: list[int]) -> None:
        self.pool = pool
        self.prompt = prompt
        self.evaluated: dict[str, list[int]] = {}
        """Tokens of each turn's prompt that were not in a prefix cache."""
        self.retried = 0

    async def session(self, session_id: str, turns: int) -> None:
        ids = list(self.prompt) + [1000 + number % 500 for number in range(120)]
        self.evaluated[session_id] = []
        while len(self.evaluated[session_id]) < turns:
            try:
                piece = await whole(self.pool, ask(ids, session_id, max_tokens=6, temperature=0))
            except EngineError:  # after its first tokens, as a harness asks again
                self.retried += 1
                continue
            assert len(piece.ids) == len(piece.logprobs) == 6 and piece.evaluated_tokens is not None
            self.evaluated[session_id].append(piece.evaluated_tokens)
            ids += piece.ids


async def test_one_is_killed_in_the_middle_of_the_work(
    started: tuple[Any, EngineInfo], both: list[LlamaProgram], prompt: list[int]
) -> None:
    pool, (lost, kept) = started[0], both
    its = [session_of(pool, lost, start) for start in (2000, 4000)]
    others = [session_of(pool, kept, start) for start in (2000, 4000)]
    work = Work(pool, prompt)
    async with hang_limit():
        turns = [asyncio.create_task(work.session(name, 12)) for name in (*its, *others)]
        await until(lambda: all(len(work.evaluated.get(name, [])) >= 3 for name in (*its, *others)))
        await lost.kill()
        await asyncio.gather(*turns)
    assert all(len(done) == 12 for done in work.evaluated.values()), "no turn is lost"
    assert pool.replicas()[lost.url] and pool.counters()["replicas"][lost.url]["losses"] == 1
    await lost.start()
    await until(lambda: not pool.replicas()[lost.url])
    before = pool.counters()["replicas"][lost.url]["calls"]
    await whole(pool, ask(prompt, its[0], max_tokens=2))
    assert pool.counters()["replicas"][lost.url]["calls"] == before + 1, "its sessions return to it"


async def test_the_sessions_of_the_other_stay_in_its_cache(
    started: tuple[Any, EngineInfo], both: list[LlamaProgram], prompt: list[int]
) -> None:
    pool, (lost, kept) = started[0], both
    mine = session_of(pool, kept, 6000)
    work = Work(pool, prompt)
    await work.session(mine, 3)
    await lost.kill()
    await until(lambda: pool.replicas()[lost.url])
    sampled = pool.counters()["replicas"][kept.url]["calls"]
    again = Work(pool, prompt)
    await again.session(mine, 3)
    assert pool.counters()["replicas"][kept.url]["calls"] == sampled + 3
    assert again.evaluated[mine][1:] == work.evaluated[mine][1:], "each turn evaluates what is new, as before"
    await lost.start()
    await until(lambda: not pool.replicas()[lost.url])
