"""Which program of the row's test command the runtime does not have. Such a run says nothing about the patch.

Only the runtime can lack a program that the row's own shell searches in PATH, or that has an absolute path outside
the workspace: the agent never was in this runtime. A program of the repository is the agent's to keep, so a patch
that removes `./run_tests` has broken it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from polar.evaluators.hardening.protected import PROGRAM
from polar.evaluators.hardening.witness import Testimony
from polar.evaluators.swe_bench.script import EvalLog, test_command

NOT_RUN = (126, 127)
"""Exit codes of a shell whose command cannot be executed, or is not found."""
NO_MODULE = re.compile(r"\S*(?:python|pypy)[\d.]*: No module named (pytest|py\.test)")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def missing_program(script: str, seen: Testimony, log: EvalLog) -> str:
    """Its name; empty: none is missing, or the repository lacks it. `script`: the row's."""
    command = test_command(script)
    if log.exit_code == 1:
        return _missing_module(log)
    if log.exit_code not in NOT_RUN:
        return ""
    # A Python that ran may have chosen this exit code.
    return _not_found(command, log) or ("" if seen.processes else _runner_outside(command, seen.workspace))


def _missing_module(log: EvalLog) -> str:
    """Of `python -m pytest`, whose whole output is then Python's own line."""
    found = NO_MODULE.fullmatch(log.printed[0]) if len(log.printed) == 1 else None
    return found[1] if found else ""


def _not_found(command: str, log: EvalLog) -> str:
    """What the script's shell did not find in PATH, if that was the end of the test command."""
    name = log.not_found[-1] if log.not_found else ""
    is_the_end = log.printed[-1:] == [f"{name}: command not found"]
    return name if is_the_end and name in re.split(r"[\s;&|()]+", command) else ""


def _runner_outside(command: str, workspace: str) -> str:
    """The test runner or Python that the command starts, unless it is a program of the repository."""
    one = command.strip().replace("\\\n", " ")
    if re.search(r"[;&|\n]", one):  # the exit code may be another command's
        return ""
    try:
        words = [word for word in shlex.split(one) if not ASSIGNMENT.match(word)]
    except ValueError:  # an open quote
        return ""
    if not words:
        return ""
    first = PurePosixPath(words[0])
    is_outside = "/" not in words[0] or (first.is_absolute() and not first.is_relative_to(workspace))
    return str(first) if is_outside and PROGRAM.fullmatch(first.name) else ""


def fix_for(program: str) -> str:
    name = PurePosixPath(program).name
    package = "--pip pytest" if name in ("pytest", "py.test") else f"--apt {name}"
    return (
        f"the runtime has no {program}, with which the tests run: use an image that has it "
        f"(`polar image build NAME {package}`), or let the eval script install it"
    )
