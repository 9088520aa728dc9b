"""A seccomp filter for system calls that a session may not use.

A process inherits its parent's keyring, and keys belong to their user in every namespace: a session could read the
node's keys, and leave messages for other sessions.
"""

from __future__ import annotations

import errno
import struct

KEY_CALLS = {
    0xC000003E: (248, 250),
    0x40000003: (286, 288),
    0xC00000B7: (217, 219),
    0x40000028: (309, 311),
}
"""First and last number of add_key, request_key and keyctl, by the kernel's constant for the architecture: x86
with 64 and with 32 bits, then ARM."""
SECOND_SET = 0x40000000
"""Set in the call numbers of the x32 ABI, which are otherwise those of x86-64."""
NUMBER_AT, MACHINE_AT = 0, 4
LOAD, AND, RETURN = 0x20, 0x54, 0x06
IF_EQUAL, IF_GREATER, IF_AT_LEAST = 0x15, 0x25, 0x35
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def without_keys() -> bytes:
    """The filter. The kernel seems to have been built without keys."""
    program = [_step(LOAD, MACHINE_AT)]
    for machine, (first, last) in KEY_CALLS.items():
        program += [
            _step(IF_EQUAL, machine, otherwise=6),
            _step(LOAD, NUMBER_AT),
            _step(AND, ~SECOND_SET & 0xFFFFFFFF),
            _step(IF_AT_LEAST, first, otherwise=1),
            _step(IF_GREATER, last, otherwise=1),
            _step(RETURN, ALLOW),
            _step(RETURN, REFUSE),
        ]
    return b"".join([*program, _step(RETURN, ALLOW)])


def _step(code: int, value: int, *, otherwise: int = 0) -> bytes:
    """`otherwise`: how many steps to skip if a condition does not hold."""
    return struct.pack("=HBBI", code, 0, otherwise, value)
