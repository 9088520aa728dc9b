"""File descriptors: closed at the end of a block, files in memory, and a channel to a child process."""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def closing_fd(descriptor: int) -> Generator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def memory_file(content: bytes) -> int:
    """The descriptor of a new file in memory, positioned at its start; the caller closes it."""
    descriptor = os.memfd_create("polar")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def receive(channel: socket.socket, size_bytes: int) -> tuple[bytes, list[int]]:
    """A message, and the descriptor that came with it, if one did. No child inherits it: uvloop leaves open in a
    child what is not marked so, and the child may be another session. (`socket.recv_fds` takes no such mark.)"""
    received = array.array("i")
    room_bytes = socket.CMSG_LEN(received.itemsize)
    message, ancillary, _, _ = channel.recvmsg(size_bytes, room_bytes, socket.MSG_CMSG_CLOEXEC)
    for _, _, data in ancillary:
        received.frombytes(data)
    return message, list(received)


async def start_child_program(file: str, env: dict[str, str]) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Runs a Python file by its path, without site packages, and returns the channel to it. The child's end is the
    descriptor that it has as argument."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", file, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=env,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours
