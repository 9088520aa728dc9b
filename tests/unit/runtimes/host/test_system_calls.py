"""The seccomp filter, run by a small interpreter, and the profiles of container engines."""

from __future__ import annotations

import struct

import pytest

from polar.runtimes.host.seccomp_profile import ALLOWED, denying_profile, session_profile
from polar.runtimes.host.system_calls import FAMILIES, session_filter

X86_64, X86, ARM_64, ARM, RISC_V = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028, 0xC00000F3
ALLOW, NO_SUCH_CALL, NO_FAMILY = 0x7FFF0000, 0x00050026, 0x00050061
KEYS = {X86_64: 248, X86: 286, ARM_64: 217, ARM: 309}
SOCKETS = {X86_64: (41, 53), X86: (359, 360), ARM_64: (198, 199), ARM: (281, 288)}
SOCKETCALL = {X86: 102, ARM: 102}
UNIX, VSOCK = 1, 40


PROGRAM = list(struct.iter_unpack("=HBBI", session_filter()))


def verdict(machine: int, number: int, argument: int = UNIX) -> int:
    held, at = 0, 0
    while True:
        code, then, otherwise, value = PROGRAM[at]
        at += 1
        match code:
            case 0x20:
                held = {0: number, 4: machine, 16: argument & 0xFFFFFFFF}[value]
            case 0x54:
                held &= value
            case 0x06:
                return value
            case _:
                holds = {0x15: held == value, 0x25: held > value, 0x35: held >= value}[code]
                at += then if holds else otherwise


@pytest.mark.parametrize("machine", [X86_64, X86, ARM_64, ARM])
def test_keys_io_uring_and_socketcall_are_refused_and_no_others(machine: int) -> None:
    refused = {number for number in range(600) if verdict(machine, number) == NO_SUCH_CALL}
    keys, rings = range(KEYS[machine], KEYS[machine] + 3), range(425, 428)
    multiplexed = {SOCKETCALL[machine]} if machine in SOCKETCALL else set[int]()
    assert refused == {*keys, *rings, *multiplexed}
    assert all(verdict(machine, number) == ALLOW for number in range(600) if number not in refused)


@pytest.mark.parametrize("machine", [X86_64, X86, ARM_64, ARM])
def test_sockets_have_only_the_families_that_programs_need(machine: int) -> None:
    for number in SOCKETS[machine]:
        open_families = [family for family in range(64) if verdict(machine, number, family) == ALLOW]
        assert open_families == sorted(FAMILIES)
        assert verdict(machine, number, VSOCK) == NO_FAMILY
        assert verdict(machine, number, 2**32 - 1) == NO_FAMILY
    assert verdict(machine, 600, VSOCK) == ALLOW, "the first argument counts in calls about sockets alone"


def test_bits_above_an_int_do_not_hide_a_family() -> None:
    assert verdict(X86_64, 41, 2**32 | VSOCK) == NO_FAMILY


def test_the_other_set_of_numbers_is_no_way_around() -> None:
    assert verdict(X86_64, 0x40000000 | 250) == NO_SUCH_CALL
    assert verdict(X86_64, 0x40000000 | 425) == NO_SUCH_CALL
    assert verdict(X86_64, 0x40000000 | 41, VSOCK) == NO_FAMILY
    assert verdict(X86_64, 0x40000000 | 0) == ALLOW


def test_a_machine_it_does_not_know_goes_on() -> None:
    assert verdict(RISC_V, 250) == ALLOW


def test_a_profile_that_allows_lists_nothing_that_leads_out() -> None:
    profile = session_profile()
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    dangerous = "keyctl io_uring_setup mount setns unshare bpf kexec_load init_module socket clone3"
    assert not set(dangerous.split()) & set(ALLOWED.split())
    families = [rule["args"][0]["value"] for rule in profile["syscalls"] if "socket" in rule["names"]]
    assert families == list(FAMILIES)


def test_a_profile_that_denies_names_every_other_family() -> None:
    rules = [rule for rule in denying_profile()["syscalls"] if "socket" in rule["names"]]
    equal = {rule["args"][0]["value"] for rule in rules if rule["args"][0]["op"] == "SCMP_CMP_EQ"}
    assert equal == set(range(64)) - set(FAMILIES)
    assert [rule["args"][0]["value"] for rule in rules if rule["args"][0]["op"] == "SCMP_CMP_GT"] == [63]
