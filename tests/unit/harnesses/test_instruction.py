"""How an instruction reaches a harness; packages for the machine, Node.js, the reply limit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from polar.errors import HarnessError
from polar.harnesses.base import HarnessContext
from polar.harnesses.instruction import INSTRUCTION_FILE, fits_an_argument, reading_stdin, refuse_commands
from polar.harnesses.packaged import reply_tokens
from polar.harnesses.programs.native import NODE_PACKS, fitting, node_pack, node_program

MakeContext = Callable[..., HarnessContext]


@pytest.mark.parametrize("instruction", ["-n hello", "a\0b", " \n x \n\n", "$HOME `id` \\", "äöü 123\n" * 50_000])
def test_a_program_reads_the_instruction_as_its_stdin(
    session: MakeContext, tmp_path: Path, instruction: str
) -> None:
    home = tmp_path / "it's a home"
    home.mkdir()
    (home / INSTRUCTION_FILE).write_bytes(instruction.encode())
    argv = reading_stdin(("cat", "-"), structs.replace(session(instruction), home=str(home)))
    assert subprocess.run(argv, capture_output=True, check=True).stdout == instruction.encode()


def test_the_programs_own_arguments_stay_as_they_are(session: MakeContext, tmp_path: Path) -> None:
    (tmp_path / INSTRUCTION_FILE).touch()
    words = ("printf", "%s|", "a b", "$HOME", "'", "")
    argv = reading_stdin(words, structs.replace(session(), home=str(tmp_path)))
    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"a b|$HOME|'||"


@pytest.mark.parametrize(
    ("text", "fits"),
    [("", True), ("x" * 120_000, True), ("x" * 120_001, False), ("ü" * 60_001, False), ("\0", False)],
)
def test_what_fits_an_argument(text: str, fits: bool) -> None:
    assert fits_an_argument(text) == fits


@pytest.mark.parametrize("instruction", ["/help", "/help me", " \n/init\nx", "/a:b-c.d e", "/Users"])
def test_a_word_after_a_slash_may_be_a_command(instruction: str) -> None:
    with pytest.raises(HarnessError, match="Some CLI would run '/"):
        refuse_commands(instruction, "Some CLI")


@pytest.mark.parametrize(
    "instruction", ["", "/", "//", "/app/main.py fails", "/1", "a /help", "/* x */", "/tmp/x"]
)
def test_a_path_is_no_command(instruction: str) -> None:
    refuse_commands(instruction, "Some CLI")


@pytest.mark.parametrize("machine", NODE_PACKS, ids=" ".join)
def test_node_is_chosen_by_the_machine(on_machine: Callable[..., None], machine: tuple[str, str]) -> None:
    on_machine(*machine)
    assert node_pack() == NODE_PACKS[machine]
    assert node_program({node_pack().package: Path("/cache/node")}) == "/cache/node/bin/node"


def test_a_machine_without_a_package_is_named(on_machine: Callable[..., None]) -> None:
    on_machine("linux", "riscv64")
    with pytest.raises(HarnessError, match=r"there is no Node\.js package for linux on riscv64"):
        node_pack()
    assert fitting({("linux", "riscv64"): "some-package"}, "Some CLI") == "some-package"


@pytest.mark.parametrize(
    ("window", "wanted", "reply"),
    [(8192, None, 2048), (131072, None, 32000), (8192, 500, 500), (8192, 9000, 9000)],
)
def test_a_reply_takes_a_quarter_of_the_window_unless_told(
    session: MakeContext, window: int, wanted: int | None, reply: int
) -> None:
    assert reply_tokens(session(context_tokens=window).slot, wanted) == reply
