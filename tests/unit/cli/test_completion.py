"""Completion in the shell, as docs/install.md sets it up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

POLAR = "import sys; from polar.cli.app import main; sys.argv[0] = 'polar'; main()"


def polar(*arguments: str, **env: str) -> str:
    command = [sys.executable, "-P", "-c", POLAR, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **env})
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [("polar in", ["init"]), ("polar harness in", ["install"]), ("polar run --res", ["--resume"])],
)
def test_a_shell_is_offered_what_fits(words: str, expected: list[str]) -> None:
    last = str(len(words.split()) - 1)
    offered = polar(_POLAR_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=last)
    assert offered.split() == expected


def test_bash_completes_with_the_printed_script(tmp_path: Path) -> None:
    program = tmp_path / "polar"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -c "{POLAR}" "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "completion.sh"
    script.write_text(polar(_POLAR_COMPLETE="source_bash"))
    ask = f"source {script}; COMP_WORDS=(polar resc); COMP_CWORD=1; _polar_completion polar; echo $COMPREPLY"
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, check=True, env={**os.environ, "PATH": path}
    )
    assert done.stdout.strip() == "rescore"
