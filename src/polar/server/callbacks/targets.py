"""Which addresses callbacks may go to: public ones, and what the operator lists.

A task names the address, and the server can reach what its submitter cannot: metadata services, other hosts of its
network, programs on its own machine. So the address that a connection will use is checked, after its name is
resolved: a name that resolves to another address at the second time gains nothing. An address that stands in the
URL is refused when the task is submitted.
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
        chosen = config.callback_loopback
        self._loopback = is_loopback(config.host) if chosen is None else chosen
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
        address = _literal(URL(url).host or "")
        if address is not None and not self.allows(address):
            raise _refusal(address)


def _literal(host: str) -> str | None:
    """The address that `host` spells; None: it is a name, which the resolver checks."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:  # the short and numeric forms of IPv4, as 127.1
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def refusal_in(error: BaseException | None) -> RefusedTarget | None:
    """The refusal that caused an error: aiohttp raises its own error when the resolver refuses."""
    while error is not None and not isinstance(error, RefusedTarget):
        error = error.__cause__
    return error


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
