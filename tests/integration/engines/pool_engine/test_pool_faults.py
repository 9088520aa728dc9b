"""A pool whose replicas are busy, slow to start, cut off or wrong, over real HTTP. The servers are fakes of vLLM;
two real llama.cpp servers are in `test_pool_llama.py`."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import MODEL, FakeVllm
from replica_servers import ReplicaServer, ReplicaServers, session_of
from toy_model import ShiftedToy, ToyModel

from contracts.engine_contract import ask, whole
from polar.engines.base import Piece
from polar.errors import ConfigError, EngineBusy, EngineError, PolarError
from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Spec
from waiting import hang_limit, until

PROMPT = [500, 501, 502]


def sessions_at(server: ReplicaServer) -> Counter[str]:
    """Calls of each session, without self-tests and checks of weights."""
    seen = Counter(headers["x-session-id"] for headers in server.fake.headers if "x-session-id" in headers)
    return Counter({name: count for name, count in seen.items() if name.startswith("session-")})


def refusing(status: int, **headers: str) -> Any:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "not now"}}, status=status, headers=headers)

    return handler


def cutting(*events: dict[str, Any]) -> Any:
    """Sends these and breaks the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.abort()
        return response

    return handler


class Held:
    """Answers nothing until it is let go, and then breaks the connection."""

    def __init__(self) -> None:
        self.asked = 0
        self.free = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        await self.free.wait()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()


def token(token_id: int) -> dict[str, Any]:
    content = [{"token_id": token_id, "logprob": -1.0}]
    return {"choices": [{"token_ids": [token_id], "logprobs": {"content": content}, "finish_reason": None}]}


class Healthy(FakeVllm):
    """With vLLM's health route."""

    health = 200

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/health", self._health)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=self.health)


async def started(servers: ReplicaServers, *fakes: Any, **options: Any) -> tuple[Any, list[ReplicaServer]]:
    """Two plain replicas unless others are given, and a pool over them."""
    up = [await servers.up(fake) for fake in fakes or (None, None)]
    pool = servers.pool(*up, **options)
    await pool.start()
    return pool, up


async def test_a_session_stays_at_its_replica(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers)
    for _ in range(3):
        for number in range(12):
            await whole(pool, ask(PROMPT, f"session-{number}", max_tokens=2))
    assert sessions_at(one) and sessions_at(two)
    assert not sessions_at(one).keys() & sessions_at(two).keys()
    assert set(sessions_at(one).values()) == {3}
    counted = pool.counters()
    own = [counted["replicas"][server.url] for server in (one, two)]
    assert counted["calls"] == sum(each["calls"] for each in own)
    assert [each["serving"] for each in own] == [True, True]


async def test_nodes_that_share_replicas_agree_without_talking(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers)
    other = servers.pool(two, one)
    await other.start()
    for node in (pool, other):
        for number in range(12):
            await whole(node, ask(PROMPT, f"session-{number}", max_tokens=1))
    assert not sessions_at(one).keys() & sessions_at(two).keys()


async def test_a_lost_replica_moves_only_its_own_sessions_and_gets_them_back(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers)
    mine, its = session_of(pool, one), session_of(pool, two)
    await one.down()
    for _ in range(3):
        await whole(pool, ask(PROMPT, mine, max_tokens=2))
        await whole(pool, ask(PROMPT, its, max_tokens=2))
    assert sessions_at(two) == {mine: 3, its: 3}
    assert pool.replicas()[one.url] and not pool.replicas()[two.url]
    calls_before = pool.counters()["replicas"][one.url]["calls"]
    await one.up()
    await until(lambda: not pool.replicas()[one.url])
    await whole(pool, ask(PROMPT, mine, max_tokens=2))
    await whole(pool, ask(PROMPT, its, max_tokens=2))
    assert sessions_at(one) == {mine: 1} and sessions_at(two)[its] == 4
    counted = pool.counters()["replicas"][one.url]
    assert counted["calls"] > calls_before > 0, "counts survive the engine that was given up"
    assert counted["losses"] == 1


async def test_a_busy_replica_is_left_alone_for_as_long_as_it_says(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers)
    mine = session_of(pool, one)
    one.fake.instead = refusing(503, **{"Retry-After": "3600"})
    for _ in range(3):
        await whole(pool, ask(PROMPT, mine, max_tokens=2))
    assert (sessions_at(one)[mine], sessions_at(two)[mine]) == (1, 3)
    assert not pool.replicas()[one.url], "busy is not ill"
    two.fake.instead = refusing(429, **{"Retry-After": "7"})
    with pytest.raises(EngineBusy) as caught:
        await whole(pool, ask(PROMPT, mine))
    assert 6 < caught.value.retry_after_s <= 7, "the soonest of both"
    with pytest.raises(EngineBusy, match="all replicas in service are busy"):
        await whole(pool, ask(PROMPT, mine))
    assert (sessions_at(one)[mine], sessions_at(two)[mine]) == (1, 4)


@pytest.mark.parametrize("fault", [cutting(), cutting({"choices": []}), refusing(500), refusing(404)])
async def test_a_call_that_has_produced_nothing_moves_on(servers: ReplicaServers, fault: Any) -> None:
    pool, (one, two) = await started(servers)
    mine = session_of(pool, one)
    one.fake.instead = fault
    piece = await whole(pool, ask(PROMPT, mine, max_tokens=5, temperature=0))
    assert len(piece.ids) == 5 and piece.finish_reason == "length"
    assert (sessions_at(one)[mine], sessions_at(two)[mine]) == (1, 1)
    assert pool.counters()["moved_calls"] == 1


async def test_a_call_that_has_produced_a_token_fails_with_its_replica(servers: ReplicaServers) -> None:
    """The tokens of a reply come from one replica."""
    pool, (one, two) = await started(servers)
    mine = session_of(pool, one)
    one.fake.instead = cutting(token(777), token(778))
    got: list[Piece] = []
    with pytest.raises(EngineError, match=one.url):
        async for piece in pool.generate(ask(PROMPT, mine, max_tokens=5)):
            got.append(piece)
    assert [list(piece.ids) for piece in got] == [[777, 778]]
    assert not sessions_at(two), "nothing was sampled elsewhere"
    assert pool.counters()["moved_calls"] == 0


async def test_a_replica_that_hangs_loses_the_calls_that_wait_for_it(servers: ReplicaServers) -> None:
    """No connection breaks, and the call has no time-out of its own for ten minutes."""
    pool, (one, two) = await started(servers, *[Healthy(servers.vocabulary) for _ in range(2)])
    mine, held = session_of(pool, one), Held()
    one.fake.instead = held
    call = asyncio.create_task(whole(pool, ask(PROMPT, mine, max_tokens=4)))
    await until(lambda: held.asked)
    one.fake.health = 503
    async with hang_limit():
        assert len((await call).ids) == 4
    assert sessions_at(two)[mine] == 1
    held.free.set()


async def test_a_reply_under_way_ends_where_it_began(servers: ReplicaServers) -> None:
    """Its replica is out of service before it ends, and back with another engine."""
    pool, (one, two) = await started(servers, *[Healthy(servers.vocabulary) for _ in range(2)])
    mine = session_of(pool, one)
    one.fake.step_s = 0.02
    pieces = pool.generate(ask(PROMPT, mine, max_tokens=60, seed=4))
    ids = list((await anext(pieces)).ids)
    one.fake.health = 503
    await until(lambda: pool.replicas()[one.url])
    one.fake.health = 200
    await until(lambda: not pool.replicas()[one.url])
    ids += [token_id async for piece in pieces for token_id in piece.ids]
    one.fake.step_s = 0
    assert ids == list((await whole(one_engine(one), ask(PROMPT, mine, max_tokens=60, seed=4))).ids)
    assert not sessions_at(two)


def one_engine(server: ReplicaServer) -> Any:
    return _Alone(make("engine", Spec(name="vllm", options={"url": server.url})))


class _Alone:
    """An engine for one call."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def generate(self, request: Any) -> Any:
        await self._engine.start()
        async for piece in self._engine.generate(request):
            yield piece
        await self._engine.stop()


async def test_a_request_that_is_refused_is_not_passed_around(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers)
    mine = session_of(pool, one)
    one.fake.instead = refusing(400)
    for _ in range(5):
        with pytest.raises(EngineError, match="400"):
            await whole(pool, ask(PROMPT, mine))
    assert not sessions_at(two) and not pool.replicas()[one.url]


async def test_a_replica_that_only_fails_is_taken_out_after_three(servers: ReplicaServers) -> None:
    pool, (one, _two) = await started(servers, check_s=3600)
    mine = session_of(pool, one)
    one.fake.instead = refusing(500)
    for count in (1, 2, 3):
        await whole(pool, ask(PROMPT, mine, max_tokens=1))
        assert bool(pool.replicas()[one.url]) == (count == 3)
    assert "500" in pool.replicas()[one.url]
    await whole(pool, ask(PROMPT, mine, max_tokens=1))
    assert sessions_at(one)[mine] == 3


async def test_a_score_between_failures_is_a_success_too(servers: ReplicaServers) -> None:
    pool, (one,) = await started(servers, None, check_s=3600, patience_s=0.0)
    one.fake.instead = refusing(500)
    for _ in range(4):
        with pytest.raises(EngineError, match="500"):
            await whole(pool, ask(PROMPT, max_tokens=1))
        await pool.score(ask(PROMPT).prompt_ids, [1, 2])
    assert not pool.replicas()[one.url]


async def test_a_request_that_breaks_every_replica_stops_after_some(servers: ReplicaServers) -> None:
    pool, up = await started(servers, None, None, None, None, failovers=2)
    for server in up:
        server.fake.instead = refusing(500)
    with pytest.raises(EngineError, match="500"):
        await whole(pool, ask(PROMPT, "session-x"))
    assert sum(sessions_at(server)["session-x"] for server in up) == 3
    assert not any(pool.replicas().values()), "one bad request takes nothing out of service"


async def test_a_call_waits_for_a_replica_while_there_is_none(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers)
    await one.down()
    await two.down()
    await until(lambda: all(pool.replicas().values()))
    call = asyncio.create_task(whole(pool, ask(PROMPT, "session-1", max_tokens=2)))
    await asyncio.sleep(0.05)
    assert not call.done()
    await two.up()
    async with hang_limit():
        assert len((await call).ids) == 2


async def test_without_patience_the_reasons_are_named(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, patience_s=0)
    await one.down()
    await two.down()
    await until(lambda: all(pool.replicas().values()))
    with pytest.raises(EngineError, match=f"no replica.*{one.url}: no connection.*{two.url}: no connection"):
        await whole(pool, ask(PROMPT))
    with pytest.raises(EngineError, match="no replica"):
        await pool.revive()
    await one.up()
    await until(lambda: _revived(pool))
    assert (await whole(pool, ask(PROMPT, max_tokens=1))).ids


async def _revived(pool: Any) -> bool:
    try:
        await pool.revive()
    except EngineError:
        return False
    return True


class TestStart:
    async def test_it_waits_for_a_replica_that_loads(self, servers: ReplicaServers) -> None:
        one, two = await servers.up(), await servers.up()
        await two.down()
        pool = servers.pool(one, two)
        starting = asyncio.create_task(pool.start())
        await until(lambda: not pool.replicas()[one.url])
        assert not starting.done()
        await two.up()
        async with hang_limit():
            assert (await starting).parallel == 8

    async def test_it_starts_without_one_that_does_not_come(
        self, servers: ReplicaServers, caplog: pytest.LogCaptureFixture
    ) -> None:
        one, two = await servers.up(), await servers.up()
        await two.down()
        pool = servers.pool(one, two, start_wait_s=0.3)
        assert (await pool.start()).parallel == 4
        assert f"without the replica {two.url}: no connection" in caplog.text
        await two.up()
        await until(lambda: not pool.replicas()[two.url])

    async def test_a_server_that_is_still_loading_says_503(self, servers: ReplicaServers) -> None:
        class Loading(FakeVllm):
            left = 3

            async def _models(self, request: web.Request) -> web.Response:
                self.left -= 1
                return web.Response(status=503) if self.left >= 0 else await super()._models(request)

        pool, (one, two) = await started(servers, Loading(servers.vocabulary), None)
        assert pool.replicas() == {one.url: "", two.url: ""}
        assert one.fake.left < 0

    async def test_none_answers(self, servers: ReplicaServers) -> None:
        one, two = await servers.up(), await servers.up()
        await one.down()
        await two.down()
        pool = servers.pool(one, two, start_wait_s=0.2)
        with pytest.raises(EngineError, match=f"{one.url}: no connection.*{two.url}: no connection"):
            await pool.start()

    async def test_another_model_is_refused_and_both_are_named(self, servers: ReplicaServers) -> None:
        other = {**MODEL, "id": "other", "root": "other"}
        pool = servers.pool(await servers.up(), await servers.up(models=[other]))
        with pytest.raises(
            EngineError, match=r"same model: http://.* has model .*, http://.* has model "
        ) as caught:
            await pool.start()
        assert "toy (/weights/toy)" in str(caught.value) and "model other" in str(caught.value)

    @pytest.mark.parametrize(
        ("field", "options"),
        [("context_tokens", {"models": [{**MODEL, "max_model_len": 512}]}), ("logprob_mode", {"processed": True})],
    )
    async def test_what_else_must_be_equal(self, servers: ReplicaServers, field: str, options: Any) -> None:
        pool = servers.pool(await servers.up(), await servers.up(**options))
        with pytest.raises(EngineError, match=rf"same model: .* has {field} .* has {field} "):
            await pool.start()

    async def test_other_weights_under_the_same_name_are_refused(self, servers: ReplicaServers) -> None:
        pool = servers.pool(await servers.up(), await servers.up(model=ShiftedToy(shift=5)))
        with pytest.raises(EngineError, match=r"has other weights than .*`max_drift` is 0\.1"):
            await pool.start()

    async def test_a_setting_that_cannot_come_right_is_reported_at_once(self, servers: ReplicaServers) -> None:
        pool = servers.pool(await servers.up(), await servers.up(models=[]), start_wait_s=3600)
        with pytest.raises(ConfigError, match="serves none"):
            await pool.start()

    async def test_it_starts_once(self, servers: ReplicaServers) -> None:
        pool, _ = await started(servers)
        with pytest.raises(EngineError, match="already started"):
            await pool.start()
        await pool.stop()
        with pytest.raises(EngineError, match="not running; start it first"):
            await whole(pool, ask(PROMPT))


async def test_a_replica_that_returns_with_another_model_stays_out(servers: ReplicaServers) -> None:
    pool, (one, _two) = await started(servers)
    await one.down()
    await until(lambda: pool.replicas()[one.url])
    one.fake.models = [{**MODEL, "id": "other", "root": "other"}]
    await one.up()
    await until(lambda: "same model" in pool.replicas()[one.url])
    assert (await whole(pool, ask(PROMPT, session_of(pool, one), max_tokens=1))).ids
    assert not sessions_at(one)


class TestRoom:
    async def test_connections_are_bounded(self, servers: ReplicaServers) -> None:
        pool, up = await started(servers, connections=2, check_s=3600)
        held = [Held(), Held()]
        for server, each in zip(up, held, strict=True):
            server.fake.instead = each
        calls = [asyncio.create_task(_ids(pool, f"session-{number}")) for number in range(10)]
        await until(lambda: [each.asked for each in held] == [2, 2])
        await asyncio.sleep(0.05)
        assert [each.asked for each in held] == [2, 2], "six wait here"
        for server in up:
            server.fake.instead = None
        waiting = [number for number, call in enumerate(calls) if not call.done()]
        calls[waiting[-1]].cancel()
        for each in held:
            each.free.set()
        async with hang_limit():
            replies = await asyncio.gather(*calls, return_exceptions=True)
        whole_ones = [reply for reply in replies if isinstance(reply, list) and len(reply) == 3]
        assert len(whole_ones) == 9, "and those whose connection broke moved on"

    async def test_one_session_does_not_fill_one_replica(self, servers: ReplicaServers) -> None:
        pool, up = await started(servers, check_s=3600, load_factor=1.5)
        held = [Held(), Held()]
        for server, each in zip(up, held, strict=True):
            server.fake.instead = each
        calls = [asyncio.create_task(_ids(pool, "session-1")) for _ in range(12)]
        await until(lambda: sum(each.asked for each in held) == 12)
        assert sorted(each.asked for each in held) == [3, 9], "one and a half times its share, and the rest"
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert all(each["under_way"] == 0 for each in pool.counters()["replicas"].values())
        for each in held:
            each.free.set()

    async def test_stopping_ends_what_is_under_way(self, servers: ReplicaServers) -> None:
        pool, up = await started(servers)
        held = Held()
        for server in up:
            server.fake.instead = held
        call = asyncio.create_task(_ids(pool, "session-1"))
        await until(lambda: held.asked)
        await pool.stop()
        async with hang_limit():
            with pytest.raises(PolarError):
                await call
        held.free.set()


async def _ids(pool: Any, session_id: str) -> list[int]:
    return list((await whole(pool, ask(PROMPT, session_id, max_tokens=3, temperature=0))).ids)


async def test_scores_and_text_move_on_too(servers: ReplicaServers, vocabulary: Vocabulary) -> None:
    pool, (one, _two) = await started(servers, failovers=1)
    await one.down()
    ids = ask(PROMPT).prompt_ids
    toy = ToyModel()
    for _ in range(4):
        scores = await pool.score(ids, [1, 2])
        expected = [toy.logprob(PROMPT[:1], 501), toy.logprob(PROMPT[:2], 502)]
        assert scores.tolist() == pytest.approx(expected, abs=1e-5)
