"""A socket that listens in a session's network namespace, for the gateway to accept from.

A runtime with its own network has no route out. A short-lived child joins that network, listens on its loopback
and passes the socket back. The session needs no route, no address of the node and nothing installed inside.
"""

from __future__ import annotations

import socket
import sys

from polar.errors import RuntimeFailure
from polar.runtimes.host.descriptors import receive
from polar.runtimes.host.spawn import complaint_of

LISTEN = """
import array, ctypes, fcntl, os, socket, struct, sys
channel, port, pid, *namespaces = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
opened = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in namespaces]
for descriptor in opened:
    if libc.setns(descriptor, 0) != 0:
        sys.exit(f"cannot join it: {os.strerror(ctypes.get_errno())}")
UP, RUNNING, GET_FLAGS, SET_FLAGS = 0x1, 0x40, 0x8913, 0x8914
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
(flags,) = struct.unpack("16xh", fcntl.ioctl(listener, GET_FLAGS, struct.pack("16sh", b"lo", 0)))
if not flags & UP:
    fcntl.ioctl(listener, SET_FLAGS, struct.pack("16sh", b"lo", UP | RUNNING))
listener.bind(("127.0.0.1", int(port)))
listener.listen(2048)
channel = socket.socket(fileno=int(channel))
channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
"""
"""Joins the session's network and listens. Brings loopback up first if it is down, as in a new network. That takes
privileges there, and so does a port below 1024; by executing another program after joining, a user other than root
would lose them."""


async def open_listener(pid: int, *, user: bool, port: int = 0) -> socket.socket:
    """A socket that listens on 127.0.0.1 in the network of process `pid`; port 0: any free one. `user`: it
    has its own user namespace, which the child joins first; without one the node has to be root."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        await _listen(pid, theirs.fileno(), user=user, port=port)
        _, received = receive(ours, 1)
    if len(received) != 1:
        raise RuntimeFailure("no socket was passed back from the session's network")
    listener = socket.socket(fileno=received[0])
    listener.setblocking(False)
    return listener


async def _listen(pid: int, channel: int, *, user: bool, port: int) -> None:
    namespaces = ("user", "net") if user else ("net",)
    given = (str(channel), str(port), str(pid), *namespaces)
    complaint = await complaint_of(sys.executable, "-I", "-S", "-c", LISTEN, *given, pass_fds=(channel,))
    if complaint:
        raise RuntimeFailure(f"the gateway cannot listen in the session's network: {complaint}")
