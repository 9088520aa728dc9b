"""The seccomp filter, run by a small interpreter."""

from __future__ import annotations

import struct

import pytest

from polar.runtimes.host.system_calls import without_keys

X86_64, X86, ARM_64, ARM, RISC_V = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028, 0xC00000F3
ALLOWED, NO_SUCH_CALL = 0x7FFF0000, 0x00050026


def verdict(machine: int, number: int) -> int:
    program = [struct.unpack_from("=HBBI", without_keys(), at) for at in range(0, len(without_keys()), 8)]
    held, at = 0, 0
    while True:
        code, then, otherwise, value = program[at]
        at += 1
        match code:
            case 0x20:
                held = {0: number, 4: machine}[value]
            case 0x54:
                held &= value
            case 0x06:
                return value
            case _:
                holds = {0x15: held == value, 0x25: held > value, 0x35: held >= value}[code]
                at += then if holds else otherwise


@pytest.mark.parametrize(("machine", "first"), [(X86_64, 248), (X86, 286), (ARM_64, 217), (ARM, 309)])
def test_calls_about_keys_are_refused_and_no_others(machine: int, first: int) -> None:
    refused = [number for number in range(600) if verdict(machine, number) == NO_SUCH_CALL]
    assert refused == [first, first + 1, first + 2]
    assert all(verdict(machine, number) == ALLOWED for number in range(600) if number not in refused)


def test_the_other_set_of_numbers_is_no_way_around() -> None:
    assert verdict(X86_64, 0x40000000 | 250) == NO_SUCH_CALL
    assert verdict(X86_64, 0x40000000 | 0) == ALLOWED


def test_a_machine_it_does_not_know_goes_on() -> None:
    assert verdict(RISC_V, 250) == ALLOWED
