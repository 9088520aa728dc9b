"""A replica serves only with the current weights: found by the version that its server reports with its tokens, or
by logprobs if it reports none. The servers are fakes of vLLM; two real samplers are in `test_pool_updates.py`."""

from __future__ import annotations

from typing import Any

import pytest
from fake_vllm import FakeVllm
from replica_servers import ReplicaServer, ReplicaServers, session_of
from toy_model import ShiftedToy

from contracts.engine_contract import ask, whole
from polar.errors import EngineError
from polar.types import PolicySpan
from waiting import hang_limit, until

PROMPT = [500, 501, 502]


async def started(servers: ReplicaServers, *versions: str, **options: Any) -> tuple[Any, list[ReplicaServer]]:
    """A replica of each version; "default" is what a server says that was given none."""
    fakes = [FakeVllm(servers.vocabulary, model=ShiftedToy(), versions=[version]) for version in versions]
    up = [await servers.up(fake) for fake in fakes]
    pool = servers.pool(*up, **options)
    await pool.start()
    return pool, up


def out(pool: Any) -> list[bool]:
    return [bool(why) for why in pool.replicas().values()]


async def version_of(pool: Any, session_id: str) -> Any:
    piece = await whole(pool, ask(PROMPT, session_id, max_tokens=2))
    return piece.policy_spans[0].version if piece.policy_spans else ""


async def update(pool: Any, up: list[ReplicaServer], version: str) -> None:
    """As a trainer does it: the engines first, then the nodes hear of it."""
    for server in up:
        server.fake.versions = [version]
        server.fake.model.shift = int(version)
    pool.policy_changed(version)


async def test_a_replica_that_missed_an_update_gets_no_call_under_the_new_version(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, "1", "1")
    mine = session_of(pool, one)
    assert await version_of(pool, mine) == "1"
    await update(pool, [two], "2")
    for _ in range(3):
        assert await version_of(pool, mine) == "2", "sampled by the other replica"
    assert out(pool) == [True, False]
    assert "it has the weights of version 1, the pool those of 2" in pool.replicas()[one.url]
    await update(pool, [one, two], "3")
    assert await version_of(pool, mine) == "3"
    assert out(pool) == [False, False]
    assert pool.counters()["replicas"][one.url]["under_way"] == 0


async def test_one_that_was_given_the_version_later_returns_by_itself(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, "1", "1")
    await update(pool, [two], "2")
    await until(lambda: out(pool) == [True, False])
    one.fake.versions = ["2"]
    await until(lambda: out(pool) == [False, False])


async def test_a_restarted_replica_stays_out_until_it_has_the_weights(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, "default", "default")
    await update(pool, [one, two], "4")
    assert await version_of(pool, session_of(pool, one)) == "4"
    await one.down()
    await until(lambda: out(pool) == [True, False])
    one.fake.versions, one.fake.model.shift = ["default"], 0  # what it was started with
    await one.up()
    await until(lambda: "weights of version (none named), the pool those of 4" in pool.replicas()[one.url])
    assert await version_of(pool, session_of(pool, one)) == "4"
    await update(pool, [one, two], "5")
    await until(lambda: out(pool) == [False, False])


async def test_a_restart_that_no_check_saw_is_found_by_its_first_reply(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, "1", "1", check_s=3600.0)
    await update(pool, [one, two], "2")
    mine = session_of(pool, one)
    assert await version_of(pool, mine) == "2"
    one.fake.versions, one.fake.model.shift = ["default"], 0
    assert await version_of(pool, mine) == "2", "the reply came in one piece, which was not passed on"
    assert "it was restarted" in pool.replicas()[one.url] and not pool.replicas()[two.url]


async def test_or_at_the_end_of_a_long_one(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, "1", "1", check_s=3600.0)
    await update(pool, [one, two], "2")
    mine = session_of(pool, one)
    await whole(pool, ask(PROMPT, mine, max_tokens=1))
    one.fake.versions, one.fake.model.shift, one.fake.step_s = ["default"], 0, 0.02
    with pytest.raises(EngineError, match="no longer reports a weight version: it was restarted"):
        await whole(pool, ask(PROMPT, mine, max_tokens=40))
    assert await version_of(pool, mine) == "2"


@pytest.mark.parametrize("versions", [("default", "7"), ("7", "default")])
async def test_a_node_that_starts_beside_a_stale_replica_leaves_it_out(
    servers: ReplicaServers, versions: tuple[str, str]
) -> None:
    pool, up = await started(servers, *versions, start_wait_s=1.0)
    assert out(pool) == [version == "default" for version in versions]
    for server in up:
        assert await version_of(pool, session_of(pool, server)) == "7"


async def test_calls_wait_while_the_weights_are_compared(servers: ReplicaServers) -> None:
    pool, (one, two) = await started(servers, "1", "1", patience_s=0.0)
    one.fake.step_s = two.fake.step_s = 0.05
    await update(pool, [one, two], "2")
    assert await version_of(pool, "any") == "2"
    pool.policy_changed("2")
    pool.policy_changed("3")  # while the comparison runs
    await update(pool, [one, two], "3")
    async with hang_limit():
        assert await version_of(pool, "any") == "3"
    assert out(pool) == [False, False]


async def test_a_version_that_is_known_before_the_start_holds_no_call_up(servers: ReplicaServers) -> None:
    one, two = [await servers.up(FakeVllm(servers.vocabulary, versions=[version])) for version in ("1", "2")]
    pool = servers.pool(one, two, start_wait_s=1.0)
    pool.policy_changed("2")
    await pool.start()
    async with hang_limit():
        assert await version_of(pool, session_of(pool, one)) == "2"
    assert out(pool) == [True, False]


class TestWithoutVersions:
    """As vLLM before 0.32, whose replies name none."""

    async def test_after_an_update_of_all_each_goes_on(self, servers: ReplicaServers) -> None:
        pool, up = await started(servers, "default", "default")
        for shift in (3, 4):
            for server in up:
                server.fake.model.shift = shift
            pool.policy_changed(str(shift))
            assert (await whole(pool, ask(PROMPT, "any", max_tokens=1))).ids
            assert out(pool) == [False, False]

    async def test_a_restarted_replica_is_known_by_its_logprobs(self, servers: ReplicaServers) -> None:
        pool, (one, two) = await started(servers, "default", "default")
        one.fake.model.shift = two.fake.model.shift = 3
        pool.policy_changed("1")
        await whole(pool, ask(PROMPT, "any", max_tokens=1))
        await one.down()
        await until(lambda: out(pool) == [True, False])
        one.fake.model.shift = 0
        await one.up()
        await until(lambda: f"other weights than {two.url}" in pool.replicas()[one.url])
        one.fake.model.shift = 3
        await until(lambda: out(pool) == [False, False])

    async def test_if_all_were_lost_they_are_compared_with_what_was(self, servers: ReplicaServers) -> None:
        pool, up = await started(servers, "default", "default")
        for server in up:
            server.fake.model.shift = 3
        pool.policy_changed("1")
        await whole(pool, ask(PROMPT, "any", max_tokens=1))
        for server in up:
            await server.down()
        await until(lambda: out(pool) == [True, True])
        up[0].fake.model.shift = 0
        await up[0].up()
        await up[1].up()
        await until(lambda: "other weights than" in pool.replicas()[up[0].url] and not out(pool)[1])

    async def test_what_cannot_be_compared_stays_out_until_the_next_update(self, servers: ReplicaServers) -> None:
        pool, (one,) = await started(servers, "default", options={"logprob_mode": "raw", "parallel": 4})
        await one.down()
        await until(lambda: out(pool) == [True])
        pool.policy_changed("1")  # while nothing is there to learn it from
        await one.up()
        await until(lambda: "push the weights again" in pool.replicas()[one.url])
        one.fake.headers.clear()
        await until(lambda: len(one.fake.headers) > 6 or out(pool) == [False])  # it is tried again and again
        assert "push the weights again" in pool.replicas()[one.url], "it is not compared with itself"
        pool.policy_changed("2")
        assert (await whole(pool, ask(PROMPT, max_tokens=1))).ids
        assert out(pool) == [False]

    async def test_before_any_update_a_single_replica_may_return(self, servers: ReplicaServers) -> None:
        pool, (one,) = await started(servers, "default")
        await one.down()
        await until(lambda: out(pool) == [True])
        await one.up()
        await until(lambda: out(pool) == [False])


async def test_the_spans_of_a_reply_pass_through(servers: ReplicaServers) -> None:
    pool, _ = await started(servers, "9", "9")
    piece = await whole(pool, ask(PROMPT, max_tokens=4, temperature=0))
    assert piece.policy_spans == (PolicySpan("9", 0, 4),)
