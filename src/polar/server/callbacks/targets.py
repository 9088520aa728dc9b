"""Which addresses callbacks may go to: public ones, and what the operator lists.

A task names the address, and the server can reach what its submitter cannot: metadata services, other hosts of its
network, programs on its own machine. So the address that a connection will use is checked, after its name is
resolved: a name that resolves to another address at the second time gains nothing.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from aiohttp import ThreadedResolver
from aiohttp.abc import ResolveResult
from yarl import URL

from polar.config import ServerConfig, is_loopback


class RefusedTarget(OSError):
    """A callback would go to an address that it may not go to."""


class CallbackTargets:
    def __init__(self, config: ServerConfig) -> None:
        self._networks = [ip_network(network) for network in config.callback_networks]
        self._loopback = is_loopback(config.host)
        """Where only this machine's users reach the server, their callbacks reach this machine."""

    def allows(self, host: str) -> bool:
        """`host`: an address, not a name."""
        address = _plain(ip_address(host))
        if any(address in network for network in self._networks):
            return True
        if address.is_loopback:
            return self._loopback
        return address.is_global and not address.is_multicast

    def check_literal(self, url: str) -> None:
        """Refuses a URL whose host is an address; aiohttp resolves only names."""
        host = URL(url).host or ""
        try:
            allowed = self.allows(host)
        except ValueError:  # a name, which the resolver checks
            return
        if not allowed:
            raise _refusal(host)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _refusal(host: str) -> RefusedTarget:
    return RefusedTarget(f"callbacks may not go to {host}: list its network in server.callback_networks")


class CheckedResolver(ThreadedResolver):
    """Gives aiohttp only addresses that callbacks may go to."""

    def __init__(self, targets: CallbackTargets) -> None:
        super().__init__()
        self._targets = targets

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        allowed = [each for each in found if self._targets.allows(each["host"])]
        if found and not allowed:
            raise _refusal(found[0]["host"])
        return allowed
