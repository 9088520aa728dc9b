"""The script behind `make bubblewrap` and others, with a fake apt that installs nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/need.sh"
PROGRAMS = ("bash", "env", "id", "mktemp", "rm", "sh", "tail")
APT_GET = """
echo "$@" >>{log}
case $1 in
install) [ -e {lists} ] || {{ echo 'E: no lists'; exit 100; }} ;;
*) {update} ;;
esac
"""


class Machine:
    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._log = folder / "log"
        self.lists = folder / "lists"
        for program in PROGRAMS:
            found = shutil.which(program)
            assert found is not None, program
            (self._bin / program).symlink_to(found)
        self._write("sudo", '"$@"')

    def has_apt(self, update: str) -> None:
        self._write("apt-get", APT_GET.format(log=self._log, lists=self.lists, update=update))

    def need(self, *words: str) -> tuple[int, str]:
        done = subprocess.run([SCRIPT, *words], env={"PATH": str(self._bin)}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def _write(self, name: str, script: str) -> None:
        (self._bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self._bin / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_is_there_is_named_and_apt_is_not_asked(machine: Machine) -> None:
    machine.has_apt("exit 1")
    code, told = machine.need("bash", "bash-package")
    assert code == 0 and told.startswith("bash-package: /") and machine.asked == []


def test_only_what_is_missing_is_installed(machine: Machine) -> None:
    machine.has_apt("exit 1")
    machine.lists.touch()
    code, told = machine.need("bash", "bash", "no-such-1", "one", "no-such-2", "two")
    assert code == 0 and told.endswith("installed: one two\n")
    assert machine.asked == ["install -y --no-install-recommends one two"]


def test_a_machine_without_lists_gets_them_first(machine: Machine) -> None:
    machine.has_apt(f": >{machine.lists}")
    assert machine.need("no-such", "one") == (0, "installed: one\n")
    assert [words.split()[0] for words in machine.asked] == ["install", "update", "install"]


def test_a_failure_of_apt_shows_its_own_message(machine: Machine) -> None:
    machine.has_apt("echo 'E: no network'; exit 100")
    code, told = machine.need("no-such", "one")
    assert code == 1 and "E: no network" in told and "apt-get could not install one" in told


def test_a_machine_without_apt(machine: Machine) -> None:
    code, told = machine.need("no-such", "one")
    assert code == 1 and "missing: one; there is no apt here" in told
