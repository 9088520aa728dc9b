"""A pool is an engine like any other: the contracts, and the ports that its replicas have."""

from __future__ import annotations

from typing import Any

import pytest
from fake_vllm_chat import FakeVllmChat
from replica_servers import ReplicaServers, session_of

from contracts.chat_contract import ChatContract, talk, whole_reply
from contracts.engine_contract import EngineContract, SchemaContract
from polar.engines.base import (
    ChatEngine,
    EngineInfo,
    Pingable,
    PolicyFollower,
    Replicated,
    Revivable,
    Scorer,
    Shareable,
    TextEngine,
)
from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Spec


class TestPoolByContract(EngineContract, SchemaContract):
    @pytest.fixture
    async def started(self, servers: ReplicaServers) -> tuple[Any, EngineInfo]:
        pool = servers.pool(await servers.up(), await servers.up())
        return pool, await pool.start()

    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return vocabulary.encode("Say hi to the toy model.")

    async def test_it_describes_what_its_replicas_have_in_common(self, info: EngineInfo) -> None:
        assert (info.name, info.model, info.logprob_mode) == ("vllm", "toy (/weights/toy)", "raw")
        assert info.parallel == 8, "the sum over both"


class TestChatPoolByContract(ChatContract):
    @pytest.fixture
    async def started(self, servers: ReplicaServers, vocabulary: Vocabulary) -> tuple[Any, EngineInfo]:
        both = [await servers.up(FakeVllmChat(vocabulary)) for _ in range(2)]
        pool = servers.pool(*both)
        info = await pool.start()
        for server in both:  # each proves its chat mode with its first reply, and that counts as calls, too
            await whole_reply(pool, talk(session_id=session_of(pool, server)))
        return pool, info


def made(name: str, **options: Any) -> Any:
    """A pool of two, never started."""
    replica = {"name": name, "options": {"url": "http://127.0.0.1:9", **options}}
    other = {"name": name, "options": {"url": "http://127.0.0.1:10", **options}}
    return make("engine", Spec(name="pool", options={"replicas": [replica, other]}))


def test_a_pool_has_the_ports_of_its_replicas() -> None:
    ports = (Scorer, ChatEngine, TextEngine, Shareable, Pingable)
    has = {
        name: [port.__name__ for port in ports if isinstance(pool, port)]
        for name, pool in (
            ("vllm", made("vllm")),
            ("sglang", made("sglang")),
            ("llamacpp", made("llamacpp")),
            ("endpoint", made("endpoint", model="m")),
        )
    }
    assert has == {
        "vllm": ["Scorer", "ChatEngine"],
        "sglang": ["Scorer", "ChatEngine"],
        "llamacpp": ["Scorer"],
        "endpoint": ["TextEngine"],
    }


def test_a_pool_follows_the_policy_and_can_be_revived() -> None:
    pool = made("vllm")
    assert isinstance(pool, PolicyFollower) and isinstance(pool, Revivable) and isinstance(pool, Replicated)


def test_a_mixture_of_engines_has_the_ports_that_all_have() -> None:
    replicas = [
        {"name": "vllm", "options": {"url": "http://127.0.0.1:9"}},
        {"name": "llamacpp", "options": {"url": "http://127.0.0.1:10"}},
    ]
    pool = make("engine", Spec(name="pool", options={"replicas": replicas}))
    assert isinstance(pool, Scorer) and not isinstance(pool, ChatEngine)


def test_whether_counting_samples_is_as_with_its_replicas() -> None:
    assert (made("vllm").counts_by_sampling, made("sglang").counts_by_sampling) == (False, True)
