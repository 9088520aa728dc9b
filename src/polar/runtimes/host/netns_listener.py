"""Listening where a session is and serving where the gateway is.

A runtime with a network of its own lets nothing out. So a short-lived child joins that network, listens on its
loopback, and hands the socket back; the gateway accepts from it as from any other. The session needs no route, no
address of the node and nothing installed inside.
"""

from __future__ import annotations

import array
import socket
import sys
from collections.abc import Sequence

from polar.errors import RuntimeFailure
from polar.runtimes.host.spawn import complaint_of

LISTEN = """
import array, fcntl, socket, struct, sys
UP, RUNNING, GET_FLAGS, SET_FLAGS = 0x1, 0x40, 0x8913, 0x8914
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
(flags,) = struct.unpack("16xh", fcntl.ioctl(listener, GET_FLAGS, struct.pack("16sh", b"lo", 0)))
if not flags & UP:
    fcntl.ioctl(listener, SET_FLAGS, struct.pack("16sh", b"lo", UP | RUNNING))
if len(sys.argv) > 1:
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    home = socket.socket(fileno=int(sys.argv[1]))
    home.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
"""
"""Brings loopback up where it is down, as in a new network, which takes privileges there; with an argument it
listens on it. Runs by itself."""


async def raise_loopback(pid: int, *, user: bool) -> None:
    """For a network without a door: its own servers still find each other."""
    await _in_network(pid, (), user=user, pass_fds=())


async def open_listener(pid: int, *, user: bool) -> socket.socket:
    """A socket that listens on 127.0.0.1 in the network of process `pid`. `user`: it has a user namespace of its
    own, which is joined first; without one the node has to be root."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await _in_network(pid, (str(theirs.fileno()),), user=user, pass_fds=(theirs.fileno(),))
        received = array.array("i")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(received.itemsize))
        for _, _, data in ancillary:
            received.frombytes(data)
    if len(received) != 1:
        raise RuntimeFailure("no socket came back from the runtime's network")
    listener = socket.socket(fileno=received[0])
    listener.setblocking(False)
    return listener


async def _in_network(pid: int, arguments: Sequence[str], *, user: bool, pass_fds: tuple[int, ...]) -> None:
    spaces = ("--user", "--preserve-credentials", "--net") if user else ("--net",)
    child = (sys.executable, "-I", "-S", "-c", LISTEN, *arguments)
    try:
        complaint = await complaint_of("nsenter", "--target", str(pid), *spaces, *child, pass_fds=pass_fds)
    except FileNotFoundError as error:
        raise RuntimeFailure(
            "there is no nsenter, by which the gateway listens inside: install util-linux"
        ) from error
    if complaint:
        raise RuntimeFailure(f"the gateway cannot listen in the runtime's network: {complaint}")
