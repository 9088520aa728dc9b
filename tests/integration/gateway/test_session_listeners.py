"""A session with a network of its own is served at a socket of its own, and only it is."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from playbook import Gateway, OpenGateway

from polar.types import Slot

ASK = {"model": "polar", "messages": [{"role": "user", "content": "Hi"}]}


def a_listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def test_a_session_is_served_at_its_own_socket(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    listener = a_listener()
    port = listener.getsockname()[1]

    slot = await gateway.open(listener=listener)

    assert slot.base_url == f"http://127.0.0.1:{port}" != gateway.slots.base_url
    status, body, _ = await gateway.post(slot, ASK)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello.")
    assert len(await gateway.calls()) == 1


async def test_a_key_carried_into_another_session_opens_nothing_there(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    first = await gateway.open("s1", listener=a_listener())
    second = await gateway.open("s2", listener=a_listener())

    stolen = Slot(base_url=second.base_url, key=first.key, model="polar", context_tokens=8192)
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
        status, body, _ = await gateway.post(stolen, ASK, path)
        assert status == 401, path
        assert "unknown key" in str(body)
    async with gateway.http.get(f"{second.base_url}/v1/models", headers=_bearer(first.key)) as response:
        assert response.status == 401
    assert await gateway.calls("s1") == []


async def test_a_closed_slot_closes_its_socket(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    slot = await gateway.open(listener=a_listener())
    await gateway.slots.close("s1")

    with pytest.raises(aiohttp.ClientConnectorError):
        await _models(gateway, slot)


async def test_a_sealed_slot_says_so_at_its_own_socket(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    slot = await gateway.open(listener=a_listener())
    await gateway.slots.seal("s1")

    status, body, _ = await gateway.post(slot, ASK)

    assert status == 400 and "ended" in str(body)


async def test_the_gateway_may_stop_before_its_sessions(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    slot = await gateway.open(listener=a_listener())
    await gateway.stack.aclose()

    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{slot.base_url}/v1/models", headers=_bearer(slot.key))


async def _models(gateway: Gateway, slot: Slot) -> None:
    async with gateway.http.get(f"{slot.base_url}/v1/models", headers=_bearer(slot.key)) as response:
        await response.read()


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}
