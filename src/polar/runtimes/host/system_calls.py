"""A seccomp filter for system calls that a session may not use.

A process inherits its parent's keyring, and keys belong to their user in every namespace: a session could read
the node's keys, and leave messages for other sessions. A socket of the family AF_VSOCK reaches the hypervisor
from every network namespace, and other families lead to rarely used parts of the kernel: a session has those
that programs need. io_uring opens sockets that no filter sees, so a session has none.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

FAMILIES = (socket.AF_UNIX, socket.AF_INET, 10, 16)
"""Address families of a session's sockets; the last are IPv6 and netlink, by which programs list network cards."""
IO_URING = (425, 427)
"""First and last number of its calls on every architecture."""


@dataclass(frozen=True)
class CallNumbers:
    """The numbers of an architecture's system calls."""

    keys: tuple[int, int]
    """First and last of add_key, request_key and keyctl."""
    sockets: tuple[int, ...]
    """Calls whose first argument is an address family: socket and socketpair."""
    socketcall: int | None = None
    """Opens a socket with arguments in memory, which a filter cannot see."""


ARCHITECTURES = {
    0xC000003E: CallNumbers((248, 250), (41, 53)),
    0x40000003: CallNumbers((286, 288), (359, 360), 102),
    0xC00000B7: CallNumbers((217, 219), (198, 199)),
    0x40000028: CallNumbers((309, 311), (281, 288), 102),
}
"""By the kernel's constant: x86 with 64 and with 32 bits, then ARM."""
SECOND_SET = 0x40000000
"""Set in the call numbers of the x32 ABI, which are otherwise those of x86-64."""
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
"""Where the kernel puts what a filter may look at. A family is an int: its lower half counts."""
LOAD, AND, RETURN = 0x20, 0x54, 0x06
IF_EQUAL, IF_GREATER, IF_AT_LEAST = 0x15, 0x25, 0x35
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
MISSING, NO_FAMILY = REFUSE | errno.ENOSYS, REFUSE | errno.EAFNOSUPPORT


def session_filter() -> bytes:
    """The filter. The kernel seems to have been built without keys, io_uring and the other families."""
    program = [_step(LOAD, MACHINE_AT)]
    for machine, numbers in ARCHITECTURES.items():
        steps = list(_for(numbers))
        program += [_step(IF_EQUAL, machine, otherwise=len(steps)), *steps]
    return b"".join([*program, _step(RETURN, ALLOW)])


def _for(numbers: CallNumbers) -> Iterable[bytes]:
    yield from (_step(LOAD, NUMBER_AT), _step(AND, ~SECOND_SET & 0xFFFFFFFF))
    for first, last in (numbers.keys, IO_URING):
        yield from (
            _step(IF_AT_LEAST, first, otherwise=2),
            _step(IF_GREATER, last, then=1),
            _step(RETURN, MISSING),
        )
    if numbers.socketcall is not None:
        yield from (_step(IF_EQUAL, numbers.socketcall, otherwise=1), _step(RETURN, MISSING))
    yield from (_step(IF_EQUAL, number, then=count) for count, number in _then(numbers.sockets))
    yield _step(RETURN, ALLOW)
    yield _step(LOAD, FIRST_ARGUMENT_AT)
    yield from (_step(IF_EQUAL, family, then=count) for count, family in _then(FAMILIES))
    yield from (_step(RETURN, NO_FAMILY), _step(RETURN, ALLOW))


def _then(values: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    """Each value with the steps to skip: past the comparisons that follow and the return behind them."""
    return ((len(values) - place, value) for place, value in enumerate(values))


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """`then`, `otherwise`: how many steps to skip if a condition holds, and if it does not."""
    return struct.pack("=HBBI", code, then, otherwise, value)
