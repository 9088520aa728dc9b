"""Outcomes of single tests out of pytest's summary."""

from __future__ import annotations

from polar.evaluators.pytest_report import outcomes_of

OUTPUT = """\
============================= test session starts ==============================
collected 6 items

tests/test_a.py .FsxXE                                                   [100%]

==================================== PASSES ====================================
_________________________________ test_passes __________________________________
----------------------------- Captured stdout call -----------------------------
PASSED tests/test_a.py::test_fails
=========================== short test summary info ============================
PASSED tests/test_a.py::test_passes
PASSED tests/test_a.py::TestIt::test_param[a - b]
PASSED tests/test_a.py::test_teardown
SKIPPED [1] tests/test_a.py:9: not here
XFAIL tests/test_a.py::test_known - a known defect
XPASS tests/test_a.py::test_fixed - a known defect
ERROR tests/test_a.py::test_teardown - RuntimeError: cannot clean up
FAILED tests/test_a.py::test_fails - assert 1 == 2 - or so
===== 1 failed, 3 passed, 1 skipped, 1 xfailed, 1 xpassed, 1 error in 0.1s =====
"""


def seen(test_id: str, output: str = OUTPUT) -> str | None:
    return outcomes_of(output, {test_id}).get(test_id)


def test_each_outcome_is_found_by_the_exact_id() -> None:
    assert seen("tests/test_a.py::test_passes") == "passed"
    assert seen("tests/test_a.py::test_known") == "xfail"
    assert seen("tests/test_a.py::test_fixed") == "xpass"
    assert seen("tests/test_a.py::test_pass") is None
    assert seen("test_a.py::test_passes") is None


def test_ids_and_messages_may_hold_the_separator() -> None:
    assert seen("tests/test_a.py::TestIt::test_param[a - b]") == "passed"
    assert seen("tests/test_a.py::test_fails") == "failed"


def test_what_a_test_prints_is_not_its_outcome() -> None:
    assert "PASSED tests/test_a.py::test_fails" in OUTPUT
    assert seen("tests/test_a.py::test_fails") == "failed"


def test_a_test_that_passed_but_could_not_clean_up_is_an_error() -> None:
    assert seen("tests/test_a.py::test_teardown") == "error"


def test_colours_and_a_missing_header_do_not_matter() -> None:
    assert seen("t.py::test_x", "\x1b[32mPASSED\x1b[0m t.py::\x1b[1mtest_x\x1b[0m\r\n") == "passed"
    assert seen("t.py::test_x", "") is None
