"""The TLS listener of a session: its provider's host, served by the gateway to that session alone."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from playbook import Gateway, OpenGateway, assert_tokens_hold_together

from polar import tls_server
from polar.gateway.http import listeners
from polar.runtimes.host_names import PROVIDERS
from polar.runtimes.session_authority import certify
from polar.testing import ScriptedReply
from polar.types import Slot
from waiting import hang_limit, until

OPENAI, ANTHROPIC, GOOGLE = "api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com"
ASK = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
PATHS = {
    OPENAI: ("/v1/chat/completions", ASK),
    ANTHROPIC: ("/v1/messages", ASK),
    GOOGLE: ("/v1beta/models/gemini-2.5-pro:generateContent", {"contents": [{"parts": [{"text": "Hi"}]}]}),
}


class Host:
    """The TLS listener of one session, and what that session's programs know of it."""

    def __init__(self, gateway: Gateway, session_id: str = "s1") -> None:
        self.gateway = gateway
        self.session_id = session_id
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.listener.setblocking(False)
        self.address: tuple[str, int] = self.listener.getsockname()
        certificate, self.context = certify(session_id, PROVIDERS)
        self.trusting = ssl.create_default_context(cadata=certificate.decode())

    async def open(self) -> Slot:
        https = (self.listener, self.context)
        plain = socket.create_server(("127.0.0.1", 0))
        return await self.gateway.open(self.session_id, listener=plain, https=https)

    async def post(
        self, key: str = "", host: str = OPENAI, path: str = "", trusting: ssl.SSLContext | None = None
    ) -> tuple[int, Any, Any]:
        default, body = PATHS[host]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        url = f"https://{self.address[0]}:{self.address[1]}{path or default}"
        tls = {"ssl": trusting or self.trusting, "server_hostname": host}
        asking = self.gateway.http.post(url, json=body, headers={"host": host, **headers}, **tls)
        async with hang_limit(), asking as response:
            return response.status, await response.json(), response.headers

    async def stalled(self, stack: contextlib.AsyncExitStack) -> asyncio.StreamReader:
        """A connection that never begins its handshake."""
        reader, writer = await asyncio.open_connection(*self.address)
        stack.callback(writer.close)
        return reader


async def serving(gateway: Gateway, session_id: str = "s1") -> tuple[Host, Slot]:
    host = Host(gateway, session_id)
    return host, await host.open()


async def is_hung_up_on(reader: asyncio.StreamReader) -> bool:
    async with hang_limit():
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("host", PROVIDERS)
async def test_each_provider_is_served_in_its_own_dialect(open_gateway: OpenGateway, host: str) -> None:
    gateway = await open_gateway(["Hello."])
    intercepted, slot = await serving(gateway)
    status, body, _ = await intercepted.post(slot.key, host)
    assert status == 200 and "Hello." in str(body)
    calls = await gateway.calls()
    assert_tokens_hold_together(calls, gateway.engine)
    assert [call.received for call in calls] == [True]


@pytest.mark.parametrize("key", ["", "sk-of-the-programs-own"])
@pytest.mark.parametrize("host", PROVIDERS)
async def test_a_program_may_have_a_key_of_its_own_or_none(open_gateway: OpenGateway, host: str, key: str) -> None:
    gateway = await open_gateway(["Hello."])
    intercepted, slot = await serving(gateway)
    assert (await intercepted.post(key, host))[0] == 200
    assert len(await gateway.calls()) == 1
    status, _, _ = await gateway.post(slot.model_copy(update={"key": key or "none"}), ASK)
    assert status == 401, "at the plain listener the session's key is needed as before"


async def test_the_key_of_another_session_is_refused_at_every_host(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello.", "Hello."])
    first, first_slot = await serving(gateway, "s1")
    second, second_slot = await serving(gateway, "s2")
    for host in PROVIDERS:
        status, body, _ = await second.post(first_slot.key, host)
        assert status == 401 and "unknown key" in str(body), host
    assert (await first.post(second_slot.key))[0] == 401
    assert await gateway.calls("s1") == await gateway.calls("s2") == []
    assert (await first.post())[0] == (await second.post())[0] == 200
    assert len(await gateway.calls("s1")) == len(await gateway.calls("s2")) == 1, "each to its own session"


async def test_the_authority_of_one_session_vouches_for_no_other(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    first, _ = await serving(gateway, "s1")
    second, _ = await serving(gateway, "s2")
    for trusting in (second.trusting, ssl.create_default_context()):
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await first.post(trusting=trusting)
    assert await gateway.calls("s1") == []


async def test_a_name_that_is_not_intercepted_has_no_certificate(open_gateway: OpenGateway) -> None:
    intercepted, _ = await serving(await open_gateway(["Hello."]))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await asyncio.open_connection(*intercepted.address, ssl=intercepted.trusting, server_hostname="pypi.org")


@pytest.mark.parametrize(
    ("host", "shape"),
    [
        (OPENAI, lambda body: body["error"]["code"] == "session_sealed"),
        (ANTHROPIC, lambda body: body["type"] == "error" and body["error"]["type"] == "invalid_request_error"),
        (GOOGLE, lambda body: body["error"]["status"] == "FAILED_PRECONDITION" or body["error"]["code"] == 400),
    ],
)
@pytest.mark.parametrize("has_key", [True, False])
async def test_a_sealed_slot_is_a_hard_stop_in_the_providers_shape(
    open_gateway: OpenGateway, host: str, shape: Any, has_key: bool
) -> None:
    gateway = await open_gateway(["Hello."])
    intercepted, slot = await serving(gateway)
    await gateway.slots.seal("s1")
    status, body, headers = await intercepted.post(slot.key if has_key else "", host)
    assert status == 400 and shape(body) and "ended" in str(body), body
    assert headers["x-should-retry"] == "false"
    assert await gateway.calls() == []


async def test_a_closed_slot_closes_the_host(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello."])
    intercepted, _ = await serving(gateway)
    async with contextlib.AsyncExitStack() as stack:
        stalled = await intercepted.stalled(stack)
        assert (await intercepted.post())[0] == 200
        await gateway.slots.close("s1")
        assert await is_hung_up_on(stalled)
        with pytest.raises(aiohttp.ClientConnectionError):
            await intercepted.post()


@pytest.mark.parametrize(
    "path", ["/api/v1/chat/completions", "/openai/v1/chat/completions", "/v1/v1/chat/completions"]
)
async def test_what_a_provider_has_before_the_version_does_not_matter(
    open_gateway: OpenGateway, path: str
) -> None:
    gateway = await open_gateway(["Hello."])
    intercepted, slot = await serving(gateway)
    assert (await intercepted.post(path=path))[0] == 200
    if not path.startswith("/v1"):
        assert (await gateway.post(slot, ASK, path))[0] == 404, "only where a provider is meant"


async def test_an_unknown_path_is_refused_in_the_providers_shape(open_gateway: OpenGateway) -> None:
    intercepted, _ = await serving(await open_gateway(["Hello."]))
    status, body, _ = await intercepted.post(host=ANTHROPIC, path="/v1/files")
    assert (status, body["type"]) == (404, "error")
    status, body, _ = await intercepted.post(host=OPENAI, path="/v1/files")
    assert status == 404 and "type" not in body


async def test_only_http_1_is_spoken(open_gateway: OpenGateway) -> None:
    intercepted, _ = await serving(await open_gateway(["Hello."]))
    intercepted.trusting.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(
        *intercepted.address, ssl=intercepted.trusting, server_hostname=OPENAI
    )
    spoken = writer.get_extra_info("ssl_object")
    assert spoken.selected_alpn_protocol() == "http/1.1"
    assert spoken.version() in ("TLSv1.3", "TLSv1.2")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nhost: api.openai.com\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\0" * 9]
)
async def test_a_client_that_speaks_no_tls_is_hung_up_on(
    open_gateway: OpenGateway, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 1.0)
    intercepted, _ = await serving(await open_gateway(["Hello."]))
    reader, writer = await asyncio.open_connection(*intercepted.address)
    writer.write(sent)
    async with hang_limit():
        with contextlib.suppress(ConnectionError):
            assert not (await reader.read()).startswith(b"HTTP"), "at most an alert of TLS"
    writer.close()
    assert (await intercepted.post())[0] == 200


async def test_a_stalled_handshake_is_ended(open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 0.2)
    intercepted, _ = await serving(await open_gateway(["Hello."]))
    async with contextlib.AsyncExitStack() as stack:
        assert await is_hung_up_on(await intercepted.stalled(stack))
    assert (await intercepted.post())[0] == 200


async def test_a_thousand_connections_are_bounded_and_other_sessions_served(open_gateway: OpenGateway) -> None:
    gateway = await open_gateway(["Hello.", "Hello."])
    greedy, slot = await serving(gateway, "s1")
    other, _ = await serving(gateway, "s2")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(enough_descriptors())
        readers = [await greedy.stalled(stack) for _ in range(1000)]
        refused = 1000 - listeners.LISTENER_CONNECTIONS
        await until(lambda: sum(reader.at_eof() or bool(reader.exception()) for reader in readers) == refused)
        assert (await other.post())[0] == 200
        with pytest.raises(aiohttp.ClientConnectionError):
            await greedy.post()
        assert (await gateway.post(slot, ASK))[0] == 200, "handshakes take no room from the plain listener"
    await until(lambda: _is_served(greedy))


@contextlib.contextmanager
def enough_descriptors() -> Iterator[None]:
    """Both ends of each connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _is_served(host: Host) -> bool:
    try:
        return (await host.post())[0] == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_a_client_that_leaves_over_tls_is_noticed(open_gateway: OpenGateway) -> None:
    """As over plain HTTP: what it never received is marked so."""
    gateway = await open_gateway(
        [ScriptedReply(text="Hello there, dear friend of mine.", block_after=2)], linger_s=0
    )
    intercepted, _ = await serving(gateway)
    _, writer = await asyncio.open_connection(
        *intercepted.address, ssl=intercepted.trusting, server_hostname=OPENAI
    )
    body = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: api.openai.com\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    await until(lambda: gateway.engine.active == 1)
    writer.transport.abort()
    await until(lambda: gateway.engine.active == 0)
    assert not any(call.received for call in await gateway.calls())
