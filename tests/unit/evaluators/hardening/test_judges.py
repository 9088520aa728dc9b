"""Which ends of a Python process are in order."""

from __future__ import annotations

import pytest

from polar.evaluators.hardening.judges import Judges, PythonProcess, with_last_line

JUDGES = Judges("/work", {"check.py": "import solution\n"}, frozenset({"solution.py", "tool.py"}))
OWN, FOREIGN = ("exit", "/work/check.py"), ("exit", "/usr/lib/argparse.py", "/work/solution.py", "/work/check.py")
ENDED, REACHED = ("ended",), ("reached",)


def process(main: str, *events: tuple[str, ...], first: bool = True, words: tuple[str, ...] = ()) -> PythonProcess:
    return PythonProcess("7", first, main, words or ("python3", main), events)


def problems(*processes: PythonProcess) -> int:
    return len(JUDGES.disorder(processes))


@pytest.mark.parametrize(
    "events", [(REACHED, ENDED), (OWN, ENDED), (("exception",), ENDED), (FOREIGN, REACHED, ENDED)]
)
def test_a_script_that_ran_to_its_end(events: tuple[tuple[str, ...], ...]) -> None:
    assert problems(process("/work/check.py", *events)) == 0


@pytest.mark.parametrize("events", [(), (ENDED,), (FOREIGN, ENDED), (("hard_exit",),), (("exec",),)])
def test_a_script_that_the_tested_code_ended(events: tuple[tuple[str, ...], ...]) -> None:
    assert problems(process("/work/check.py", *events)) == 1


def test_a_python_that_became_another_python_is_judged_by_the_last() -> None:
    assert problems(process("/work/check.py", ("exec",)), process("/work/check.py", REACHED, ENDED)) == 0
    assert problems(process("/work/check.py", ("exec",)), process("/work/check.py")) == 1


def test_the_work_itself_ends_as_it_likes() -> None:
    assert problems(process("/work/tool.py"), process("/work/tool.py", ("hard_exit",))) == 0


@pytest.mark.parametrize(
    ("main", "words"),
    [
        ("/usr/bin/pytest", ()),
        ("-m", ("python3", "-m", "pytest")),
        ("-m", ("python3", "-m", "unittest", "-v")),
        ("-c", ("python3", "-c", "import solution")),
    ],
)
def test_runners_and_code_in_the_command_judge_too(main: str, words: tuple[str, ...]) -> None:
    assert problems(process(main, ENDED, words=words)) == 0
    assert problems(process(main, FOREIGN, ENDED, words=words)) == 1
    assert problems(process(main, words=words)) == 1


def test_code_that_may_have_caught_the_exit() -> None:
    words = ("python3", "-c", "try: solution.main()\nexcept SystemExit: pass")
    assert problems(process("-c", FOREIGN, ENDED, words=words)) == 0


def test_helpers_may_be_killed() -> None:
    assert problems(process("-m", words=("python3", "-m", "http.server"))) == 0
    assert problems(process("-c", first=False)) == 0
    assert problems(process("/work/server.py")) == 0
    assert problems(process("/work/manage.py", ("hard_exit",))) == 1, "not killed: the tested code ended it"


def test_the_last_line_is_added_to_python_only() -> None:
    assert with_last_line("print(1)").startswith("print(1)\nif __name__")
    assert with_last_line("this is no Python") == "this is no Python"
