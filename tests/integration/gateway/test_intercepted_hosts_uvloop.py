"""The TLS listener on the event loop that nodes use, which has TLS of its own."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import test_intercepted_hosts as hosts
import uvloop
from playbook import Gateway, running_gateway

from polar.testing import ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.mark.parametrize(
    "test",
    [
        hosts.test_the_key_of_another_session_is_refused_at_every_host,
        hosts.test_the_authority_of_one_session_vouches_for_no_other,
        hosts.test_a_closed_slot_closes_the_host,
        hosts.test_only_http_1_is_spoken,
        hosts.test_a_thousand_connections_are_bounded_and_other_sessions_served,
        hosts.test_a_client_that_leaves_over_tls_is_noticed,
    ],
)
def test_on_uvloop(test: object, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    assert callable(test)

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:

            async def open_gateway(script: list[str | ScriptedReply], **config: object) -> Gateway:
                return await running_gateway(stack, smollm2, tmp_path, script, **config)

            await test(open_gateway)

    uvloop.run(run())


def test_a_stalled_handshake_is_ended_on_uvloop(
    smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stalled(open_gateway: hosts.OpenGateway) -> None:
        await hosts.test_a_stalled_handshake_is_ended(open_gateway, monkeypatch)

    test_on_uvloop(stalled, smollm2, tmp_path)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 9])
def test_a_client_that_speaks_no_tls_is_hung_up_on_by_uvloop(
    sent: bytes, smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def plain(open_gateway: hosts.OpenGateway) -> None:
        await hosts.test_a_client_that_speaks_no_tls_is_hung_up_on(open_gateway, sent, monkeypatch)

    test_on_uvloop(plain, smollm2, tmp_path)
