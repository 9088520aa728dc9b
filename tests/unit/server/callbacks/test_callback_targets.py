"""Which addresses callbacks may go to."""

from __future__ import annotations

import pytest

from polar.config import ServerConfig
from polar.server.callbacks.targets import CallbackTargets, CheckedResolver, RefusedTarget

OPEN = ServerConfig(host="0.0.0.0")
INNER = ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "224.0.0.1", "0.0.0.0", "100.64.0.1"]
INNER += ["::1", "fe80::1", "fd00::1", "ff02::1", "::", "::ffff:10.0.0.1", "::ffff:127.0.0.1"]


@pytest.mark.parametrize("host", INNER)
def test_addresses_that_only_the_server_reaches_are_refused(host: str) -> None:
    assert not CallbackTargets(OPEN).allows(host)
    shown = f"[{host}]" if ":" in host else host
    with pytest.raises(RefusedTarget, match=r"server\.callback_networks"):
        CallbackTargets(OPEN).check_literal(f"http://{shown}:80/x")


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111"])
def test_public_addresses_are_allowed(host: str) -> None:
    assert CallbackTargets(OPEN).allows(host)


def test_a_server_on_loopback_calls_back_on_loopback_and_nowhere_near() -> None:
    targets = CallbackTargets(ServerConfig())
    assert targets.allows("127.0.0.1") and targets.allows("::1")
    assert not targets.allows("10.0.0.1") and not targets.allows("169.254.169.254")


def test_the_operator_forbids_loopback_on_loopback() -> None:
    assert not CallbackTargets(ServerConfig(callback_loopback=False)).allows("127.0.0.1")
    assert CallbackTargets(ServerConfig(host="0.0.0.0", callback_loopback=True)).allows("::1")


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1"])
def test_short_and_numeric_forms_are_addresses(host: str) -> None:
    with pytest.raises(RefusedTarget, match=r"127\.0\.0\.1"):
        CallbackTargets(OPEN).check_literal(f"http://{host}/x")


@pytest.mark.parametrize("url", ["", "http://trainer.test/x", "http://localhost/x"])
def test_names_are_left_to_the_resolver(url: str) -> None:
    CallbackTargets(OPEN).check_literal(url)


def test_the_operator_lists_networks() -> None:
    targets = CallbackTargets(ServerConfig(host="0.0.0.0", callback_networks=("10.0.0.0/8",)))
    assert targets.allows("10.9.9.9") and not targets.allows("192.168.0.1")
    with pytest.raises(ValueError, match="everywhere"):
        ServerConfig(callback_networks=("everywhere",))


@pytest.mark.parametrize("name", ["localhost", "127.1", "2130706433"])
async def test_names_are_checked_by_what_they_resolve_to(name: str) -> None:
    with pytest.raises(RefusedTarget):
        await CheckedResolver(CallbackTargets(OPEN)).resolve(name, 80)
    assert await CheckedResolver(CallbackTargets(ServerConfig())).resolve(name, 80)
