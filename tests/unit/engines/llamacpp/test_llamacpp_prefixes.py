"""Which prefix is evaluated, copied, waited for and forgotten, against a server that only remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from polar.engines.llamacpp.prefixes import MIN_GAIN_TOKENS, PrefixStore
from polar.engines.llamacpp.protocol import Timings
from polar.engines.llamacpp.server import LlamaServer
from polar.errors import EngineError
from polar.types import TokenIds, token_ids

LONG = 4 * MIN_GAIN_TOKENS
SIZE_BYTES = 100


class StateServer:
    """Notes what it is asked; each state is a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.done: list[str] = []
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.has_room = True

    async def evaluate(self, prompt_ids: list[int], sequence: int) -> Timings:
        self.done.append(f"evaluate {sequence}")
        self.asked.set()
        await self.go_on.wait()
        return Timings(prompt_n=len(prompt_ids), predicted_n=0)

    async def save_state(self, sequence: int, filename: str) -> int:
        if not self.has_room:
            raise EngineError("no room")
        self.done.append(f"save {sequence} {filename}")
        self._folder.joinpath(filename).write_text("state")
        return SIZE_BYTES

    async def restore_state(self, sequence: int, filename: str) -> int:
        self.done.append(f"restore {sequence} {filename}")
        if not self._folder.joinpath(filename).exists():
            raise EngineError("no such file")
        return LONG


@pytest.fixture
def server(tmp_path: Path) -> StateServer:
    return StateServer(tmp_path)


@pytest.fixture
def store(server: StateServer, tmp_path: Path) -> PrefixStore:
    return PrefixStore(cast("LlamaServer", server), tmp_path, limit_bytes=2 * SIZE_BYTES)


def prompt(kind: int, *ending: int) -> TokenIds:
    return token_ids([*[kind] * LONG, *ending])


async def test_a_new_prompt_is_evaluated_and_saved(store: PrefixStore, server: StateServer) -> None:
    timings = await store.prepare(prompt(1), sequence=0)
    assert timings is not None and timings.prompt_n == LONG
    assert server.done == ["evaluate 0", "save 0 prefix-1"]


async def test_another_sequence_gets_a_copy(store: PrefixStore, server: StateServer) -> None:
    await store.prepare(prompt(1, 5), sequence=0)
    assert await store.prepare(prompt(1, 6), sequence=1) is None
    assert server.done[2:] == ["restore 1 prefix-1"]


async def test_a_sequence_that_holds_the_prefix_needs_no_copy(store: PrefixStore, server: StateServer) -> None:
    await store.prepare(prompt(1, 5), sequence=0)
    assert await store.prepare(prompt(1, 6), sequence=0) is None
    assert len(server.done) == 2


async def test_a_session_that_goes_on_is_left_alone(store: PrefixStore, server: StateServer) -> None:
    await store.prepare(prompt(1), sequence=0)
    store.note_cached(0, prompt(1, 7, 8))
    assert await store.prepare(prompt(1, 7, 8, *range(LONG)), sequence=0) is None
    assert len(server.done) == 2, "a long tool output is no other session's prefix"


async def test_a_short_prompt_is_not_worth_it(store: PrefixStore, server: StateServer) -> None:
    assert await store.prepare(token_ids([1, 2, 3]), sequence=0) is None
    assert server.done == []


async def test_sessions_that_start_together_wait_for_one_evaluation(
    store: PrefixStore, server: StateServer
) -> None:
    server.go_on.clear()
    asked = [asyncio.create_task(store.prepare(prompt(1, n), sequence=n)) for n in range(3)]
    await server.asked.wait()
    assert not any(task.done() for task in asked)
    server.go_on.set()
    await asyncio.gather(*asked)
    assert server.done == ["evaluate 0", "save 0 prefix-1", "restore 1 prefix-1", "restore 2 prefix-1"]


async def test_who_waits_for_a_cancelled_evaluation_makes_its_own(store: PrefixStore, server: StateServer) -> None:
    server.go_on.clear()
    first, second = (asyncio.create_task(store.prepare(prompt(1), sequence=n)) for n in range(2))
    await server.asked.wait()
    first.cancel()
    server.go_on.set()
    assert await second is not None
    assert server.done == ["evaluate 0", "evaluate 1", "save 1 prefix-1"]


async def test_a_state_that_cannot_be_saved_costs_no_call(store: PrefixStore, server: StateServer) -> None:
    server.has_room = False
    assert await store.prepare(prompt(1), sequence=0) is not None
    assert await store.prepare(prompt(1), sequence=1) is not None
    assert server.done == ["evaluate 0", "evaluate 1"]


async def test_a_state_that_is_gone_is_evaluated_again(
    store: PrefixStore, server: StateServer, tmp_path: Path
) -> None:
    await store.prepare(prompt(1), sequence=0)
    tmp_path.joinpath("prefix-1").unlink()
    assert await store.prepare(prompt(1), sequence=1) is not None
    assert server.done[2:] == ["restore 1 prefix-1", "evaluate 1", "save 1 prefix-2"]


async def test_the_least_recently_used_state_goes_first(
    store: PrefixStore, server: StateServer, tmp_path: Path
) -> None:
    await store.prepare(prompt(1), sequence=0)
    await store.prepare(prompt(2), sequence=1)
    await store.prepare(prompt(1), sequence=2)
    await store.prepare(prompt(3), sequence=3)
    assert {file.name for file in tmp_path.iterdir()} == {"prefix-1", "prefix-3"}
