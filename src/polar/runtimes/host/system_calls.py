"""System calls that a session does without, as a filter of the kernel's.

A process has its parent's keyring, from the node down to the session, and keys are its user's in every namespace:
so a session would read what the node keeps there, and leave messages for others.
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
"""First and last number of add_key, request_key and keyctl, by what the kernel calls the machine: x86 with 64 and
with 32 bits, then ARM."""
SECOND_SET = 0x40000000
"""Marks the numbers of x86's other set of 64-bit calls, which are otherwise the same."""
NUMBER_AT, MACHINE_AT = 0, 4
LOAD, AND, RETURN = 0x20, 0x54, 0x06
IF_EQUAL, IF_GREATER, IF_AT_LEAST = 0x15, 0x25, 0x35
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def without_keys() -> bytes:
    """The filter. To a program it looks like a kernel that has no keys."""
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
    """`otherwise`: how many steps are passed over where a condition does not hold."""
    return struct.pack("=HBBI", code, 0, otherwise, value)
