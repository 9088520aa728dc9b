"""A runtime that leads hosts to the session: its listener on port 443, its certificate, and its end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bubblewrap_bench import sh

from polar.errors import RuntimeFailure
from polar.runtimes.base import InterceptingRuntime, Interception, SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from polar.runtimes.host.threads import in_thread
from waiting import HANG_S

pytestmark = pytest.mark.check
HOST = "api.example.com"
CONNECT = (
    "import ssl, socket; plain = socket.create_connection(('%s', 443)); "
    "tls = ssl.create_default_context().wrap_socket(plain, server_hostname='%s'); print(tls.recv(5).decode())"
)


@pytest.fixture
async def starting(bubblewrap: None) -> AsyncIterator[BubblewrapRuntime]:
    runtime = BubblewrapRuntime(BubblewrapOptions.model_validate({"intercept": [HOST]}))
    yield runtime
    await runtime.stop()


def folders(tmp_path: Path, session_id: str = "s-1") -> SessionFolders:
    return SessionFolders(session_id, tmp_path / "root", tmp_path / "logs")


def greet(interception: Interception) -> None:
    """One client, and a word for it."""
    interception.listener.settimeout(HANG_S)
    accepted, _ = interception.listener.accept()
    accepted.settimeout(HANG_S)
    with accepted, interception.context.wrap_socket(accepted, server_side=True) as tls:
        tls.sendall(b"hello")


async def test_a_program_inside_reaches_the_node_at_its_hosts_name(
    starting: BubblewrapRuntime, tmp_path: Path
) -> None:
    await starting.start(folders(tmp_path))
    assert isinstance(starting, InterceptingRuntime)
    interception = await starting.interception()
    assert interception is not None and interception.names == (HOST,)
    with interception.listener:
        assert interception.listener.getsockname() == ("127.0.0.1", 443)
        greeting = in_thread(greet, interception)
        export = " ".join(f"{name}={value}" for name, value in interception.env.items())
        asking = starting.exec(sh(f'{export} python3 -c "{CONNECT % (HOST, HOST)}"'))
        finished, _ = await asyncio.gather(asking, greeting)
        assert (finished.stdout_tail, finished.exit_code) == ("hello\n", 0), finished


async def test_one_started_ahead_intercepts_for_the_session_that_takes_it(
    starting: BubblewrapRuntime, tmp_path: Path
) -> None:
    await starting.start(folders(tmp_path, "warm-1"))
    starting.adopt("s-1", tmp_path / "logs")
    interception = await starting.interception()
    assert interception is not None
    interception.listener.close()


async def test_the_port_is_the_sessions_and_not_the_nodes(starting: BubblewrapRuntime, tmp_path: Path) -> None:
    await starting.start(folders(tmp_path))
    interception = await starting.interception()
    assert interception is not None
    with interception.listener:
        with pytest.raises(RuntimeFailure, match="Address already in use"):
            await starting.interception()
        socket_of_the_node = f"socket:[{os.fstat(interception.listener.fileno()).st_ino}]"
        assert socket_of_the_node not in _listening_here(), "it is in the session's network alone"


def _listening_here() -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows}


async def test_no_key_and_no_certificate_outlive_the_session(starting: BubblewrapRuntime, tmp_path: Path) -> None:
    await starting.start(folders(tmp_path))
    files = list((tmp_path / "root" / "trust").iterdir())
    assert sorted(file.name for file in files) == ["authority.pem", "bundle.pem", "hosts"]
    assert not any("PRIVATE KEY" in file.read_text() for file in files)
    await starting.stop()
    assert not (tmp_path / "root").exists()


async def test_inside_the_files_cannot_be_changed(starting: BubblewrapRuntime, tmp_path: Path) -> None:
    await starting.start(folders(tmp_path))
    tries = ("/etc/hosts", "/opt/polar/trust/bundle.pem", "/etc/ssl/certs/ca-certificates.crt")
    finished = await starting.exec(sh("; ".join(f"(echo x >>{path}) 2>&1" for path in tries)))
    assert finished.stdout_tail.count("Read-only file system") == len(tries)


async def test_without_names_nothing_is_intercepted(bubblewrap: None, tmp_path: Path) -> None:
    runtime = BubblewrapRuntime(BubblewrapOptions())
    try:
        await runtime.start(folders(tmp_path))
        assert await runtime.interception() is None
        assert not (tmp_path / "root" / "trust").exists()
    finally:
        await runtime.stop()


async def test_the_package_that_signs_is_named_where_it_is_missing(
    starting: BubblewrapRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polar.runtimes.session_authority", None)
    with pytest.raises(RuntimeFailure, match=r"pip install 'polar-rollout\[intercept\]'"):
        await starting.start(folders(tmp_path))
