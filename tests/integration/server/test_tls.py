"""A rollout server over TLS: clients, nodes and browsers, certificates that are wrong or renewed, and handshakes
that do not end."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from desk import CONTROL, NODE, config_of, task_of
from typer.testing import CliRunner

from certificates import Authority
from node_abilities import able
from polar import tls, tls_server
from polar.cli.app import app
from polar.client import PolarClient, Retry, ServerError
from polar.config import ServerConfig
from polar.errors import ConfigError
from polar.node.uplink import ServerAway, Uplink
from polar.server.serve import RolloutServer
from polar.tls_server import TlsServer
from polar.types import Heartbeat, LeaseRequest, Registration
from waiting import hang_limit, until

ONCE = Retry(total_s=0)


@dataclass
class Served:
    server: RolloutServer
    authority: Authority
    cert: Path
    key: Path
    serial: str

    @property
    def url(self) -> str:
        return self.server.base_url

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def client(self, ca_file: str = "", url: str = "") -> PolarClient:
        return PolarClient(url or self.url, CONTROL, retry=ONCE, ca_file=ca_file or str(self.authority.file))

    def serial_now(self) -> str:
        """Of the certificate that a new connection gets."""
        context = tls.client_context(self.authority.file)
        with (
            socket.create_connection(self.address) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as up,
        ):
            return str((up.getpeercert() or {})["serialNumber"])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def served(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Served]:
    monkeypatch.setattr(tls, "LOOK_S", 0.0)
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    serial = authority.sign(cert, key)
    config = config_of(
        f"sqlite:///{tmp_path / 'server.db'}", tls_cert=str(cert), tls_key=str(key), heartbeat_s=0.5
    )
    async with RolloutServer(config, control_token=CONTROL, node_token=NODE) as server:
        yield Served(server, authority, cert, key, serial)


async def test_a_client_and_a_node_work_over_tls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a long poll, and events as they happen."""
    assert served.url.startswith("https://")
    monkeypatch.setenv(tls.CA_VARIABLE, str(served.authority.file))
    async with served.client() as client, Uplink(served.url, NODE) as uplink, hang_limit():
        await uplink.register(Registration(name="one", slots=1, abilities=able()))
        waiting = asyncio.create_task(uplink.lease(LeaseRequest(room=1, wait_s=30)))
        await client.submit(task_of("add"))
        [lease] = (await waiting).leases
        assert lease.session.session_id == "add-0"
        await uplink.renew_key()
        assert (await uplink.heartbeat(Heartbeat(sessions=()))).policy.revision == 0
        async for event in client.events():
            if event.kind == "task":
                break
        assert (await client.actions()).actions[-1].action == "tasks.submit"


async def test_a_browsers_cookie_goes_over_tls_alone(served: Served) -> None:
    context = tls.client_context(served.authority.file)
    page = {"x-polar-page": "1", "origin": served.url}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http,
        http.post(f"{served.url}/login", json={"token": CONTROL}, headers=page) as answer,
    ):
        assert answer.status == 204
        assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_certificate_of_another_ca_is_refused_with_the_fix(served: Served, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    async with served.client(ca_file=str(other.file)) as client:
        with pytest.raises(ServerError, match=r"not trusted.*POLAR_CA_FILE"):
            await client.tasks()
    async with PolarClient(served.url, CONTROL, retry=ONCE) as client:  # the system's CAs
        with pytest.raises(ServerError, match="POLAR_CA_FILE"):
            await client.tasks()
    async with Uplink(served.url, NODE) as uplink:
        with pytest.raises(ServerAway, match="POLAR_CA_FILE"):
            await uplink.register(Registration(name="one", slots=1, abilities=able()))


async def asked(arguments: list[str]) -> tuple[int, str]:
    """The exit code and the output of a command."""
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    return done.exit_code, done.output


@pytest.mark.parametrize("first", [True, False], ids=["before the command", "after it"])
async def test_a_command_takes_the_ca_as_an_option(
    served: Served, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    monkeypatch.setenv("POLAR_CONTROL_TOKEN", CONTROL)
    monkeypatch.setenv(tls.CA_VARIABLE, "")  # what the option sets is undone
    command, ca = ["nodes", "--json", "--server", served.url], ["--ca", str(served.authority.file)]
    code, refused = await asked(command)
    assert (code, "not trusted" in refused) == (2, True)
    assert "--ca" in " ".join(refused.split())
    code, answer = await asked([*ca, *command] if first else [*command, *ca])
    assert (code, '"nodes": []' in answer) == (0, True)


async def test_a_command_survives_a_connection_that_breaks_off_in_its_handshake(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_CONTROL_TOKEN", CONTROL)
    monkeypatch.setenv(tls.CA_VARIABLE, str(served.authority.file))
    command = ["nodes", "--json", "--server", served.url]
    begin, broken_off = TlsServer._begin, 0  # pyright: ignore[reportPrivateUsage]

    def break_off(first: int) -> Callable[[TlsServer, socket.socket], None]:
        def begun(server: TlsServer, accepted: socket.socket) -> None:
            nonlocal broken_off
            if broken_off >= first:
                return begin(server, accepted)
            broken_off += 1
            return accepted.close()

        return begun

    monkeypatch.setattr(TlsServer, "_begin", break_off(first=1))
    code, answer = await asked(command)
    assert (code, broken_off, '"nodes": []' in answer) == (0, 1, True), answer

    monkeypatch.setattr(TlsServer, "_begin", break_off(first=1000))
    code, refused = await asked(command)
    assert (code, "()" in refused) == (2, False), refused
    assert "broke off" in refused or "reset by peer" in refused


def test_a_ca_that_is_not_there_is_refused() -> None:
    refused = CliRunner().invoke(app, ["nodes", "--ca", "/nowhere.pem"])
    assert (refused.exit_code, "/nowhere.pem" in refused.output) == (2, True)


async def test_an_expired_certificate_is_refused_and_said_to_be_expired(served: Served) -> None:
    served.authority.sign(served.cert, served.key, expired=True)
    async with served.client() as client:
        with pytest.raises(ServerError, match="has expired: renew it"):
            await client.tasks()


async def test_a_wrong_scheme_is_named(served: Served, tmp_path: Path) -> None:
    async with served.client(url=served.url.replace("https://", "http://")) as client:
        with pytest.raises(ServerError, match="write https://"):
            await client.tasks()
    config = config_of(f"sqlite:///{tmp_path / 'plain.db'}")
    async with RolloutServer(config, control_token=CONTROL, node_token=NODE) as plain:
        async with served.client(url=plain.base_url.replace("http://", "https://")) as client:
            with pytest.raises(ServerError, match="does not speak TLS there"):
                await client.tasks()


async def test_a_renewed_certificate_is_used_without_a_restart(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    assert await asyncio.to_thread(served.serial_now) == served.serial
    async with served.client() as client:
        await client.tasks()
        served.cert.write_text("half of a file")
        assert await asyncio.to_thread(served.serial_now) == served.serial, "the old one stays until both fit"
        assert "the old certificate stays in use" in caplog.text
        renewed = served.authority.sign(served.cert, served.key)
        assert await asyncio.to_thread(served.serial_now) == renewed != served.serial
        await client.tasks()


async def test_a_certificate_that_could_not_be_read_is_tried_again(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """A key whose owner or mode is corrected keeps its time, size and inode; so does one that was read while the
    process had no descriptor left."""
    renewed = served.authority.sign(served.cert, served.key)
    right, stamp = served.key.read_bytes(), served.key.stat().st_mtime_ns
    for content, serial in ((b"x" * len(right), served.serial), (right, renewed)):
        served.key.write_bytes(content)
        os.utime(served.key, ns=(stamp, stamp))
        for _ in range(2):
            assert await asyncio.to_thread(served.serial_now) == serial
    assert caplog.text.count("the old certificate stays in use") == 1, "it says so once"


async def test_old_versions_of_tls_are_refused(served: Served) -> None:
    def connect() -> None:
        context = tls.client_context(served.authority.file)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(served.address) as raw:
            context.wrap_socket(raw, server_hostname="localhost")

    with pytest.warns(DeprecationWarning), pytest.raises(ssl.SSLError):
        connect()


async def test_unfinished_handshakes_are_bounded_in_number_and_in_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "MAX_HANDSHAKES", 4)
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 60.0)
    silent = [socket.create_connection(served.address) for _ in range(10)]
    assert await asyncio.to_thread(silent[0].recv, 1) == b"", "the oldest is broken off"
    async with served.client() as client:
        await client.tasks()
    monkeypatch.setattr(tls_server, "HANDSHAKE_S", 0.2)
    late = socket.create_connection(served.address)
    late.sendall(b"\x16\x03\x01")
    late.settimeout(60)
    assert await asyncio.to_thread(late.recv, 1) in (b"", b"\x15")
    for connection in (*silent, late):
        connection.close()


async def test_a_head_without_end_is_broken_off_over_tls_too(served: Served) -> None:
    context = tls.client_context(served.authority.file)
    reader, writer = await asyncio.open_connection(*served.address, ssl=context, server_hostname="localhost")
    async with hang_limit():
        with pytest.raises(OSError):
            writer.write(b"GET / HTTP/1.1\r\nx: ")
            while True:
                writer.write(b"a" * 65536)
                await writer.drain()
                await asyncio.sleep(0)
                if reader.at_eof():
                    raise ConnectionResetError
    writer.close()


async def test_a_client_that_leaves_in_its_handshake_leaves_nothing(served: Served) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        gone = socket.create_connection(served.address)
        gone.sendall(b"GET / HTTP/1.1\r\n\r\n")
        gone.close()

    async def closed() -> bool:
        return len(os.listdir("/proc/self/fd")) <= before

    await until(closed)


async def test_a_server_beyond_loopback_without_tls_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(f"sqlite:///{tmp_path / 'server.db'}", host="0.0.0.0")
    async with RolloutServer(config, control_token=CONTROL, node_token=NODE):
        assert "without TLS" in caplog.text and "server.tls_cert" in caplog.text


async def test_files_that_do_not_fit_are_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    authority.sign(cert, key)
    authority.sign(tmp_path / "other.pem", tmp_path / "other.key")
    for given, why in (
        ((cert, tmp_path / "none"), "no certificate or key"),
        ((cert, tmp_path / "other.key"), "PEM"),
    ):
        config = config_of(f"sqlite:///{tmp_path / 'a.db'}", tls_cert=str(given[0]), tls_key=str(given[1]))
        with pytest.raises(ConfigError, match=why):
            await RolloutServer(config, control_token=CONTROL, node_token=NODE).start()
    with pytest.raises(ValueError, match="belong together"):
        ServerConfig.model_validate({"tls_cert": str(cert)})
