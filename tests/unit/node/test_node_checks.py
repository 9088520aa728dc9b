"""Readiness of a node whose engine is at work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.slots import WaitClock
from polar.monitoring.readiness import Readiness
from polar.node.status.checks import PROVEN_S, NodeChecks


class FullEngine:
    """Every place is taken: a further request waits."""

    async def generate(self, _: Any) -> AsyncGenerator[Any]:
        await asyncio.Event().wait()
        yield


def checks(waits: WaitClock, now_s: float) -> Readiness:
    node: Any = SimpleNamespace(
        gate=PolicyGate(),
        engine=FullEngine(),
        slots=SimpleNamespace(last_token_s=waits.last_token_s),
        health=SimpleNamespace(sick=None),
        calls=SimpleNamespace(watch=lambda _: None),
    )
    server = cast("Any", SimpleNamespace(trouble="", unsent=0))
    return Readiness({"engine": NodeChecks(node, server, lambda: now_s).engine}, check_s=0.1)


async def test_an_engine_that_gives_tokens_to_long_calls_is_ready_though_it_has_no_place() -> None:
    """No call may end for minutes, and a probe would wait for a place."""
    waits = WaitClock()
    with waits.call() as call:
        call.tokens_came()
        assert (await checks(waits, time.monotonic()).report()).ready


async def test_tokens_of_long_ago_prove_nothing() -> None:
    waits = WaitClock()
    with waits.call() as call:
        assert not (await checks(waits, time.monotonic()).report()).ready, "none came yet"
        call.tokens_came()
        assert not (await checks(waits, time.monotonic() + PROVEN_S + 1).report()).ready
    assert waits.last_token_s == float("-inf"), "of calls that are under way"
