"""Reports that pytest writes at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.evaluators.hardening.junit import agrees, case_name, junit_outcomes

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest">
<testcase classname="tests.test_a.TestB" name="test_c[x-1]"/>
<testcase classname="tests.test_a" name="test_d"><failure message="no">x</failure></testcase>
<testcase classname="tests.test_a" name="test_e"><skipped type="pytest.xfail"/></testcase>
<testcase classname="tests.test_a" name="test_f"/>
<testcase classname="tests.test_a" name="test_f"><error message="teardown"/></testcase>
<testcase classname="" name="tests.test_broken"><error message="collection"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path: Path) -> dict[tuple[str, str], str]:
    (tmp_path / "report.xml").write_text(REPORT)
    return junit_outcomes(tmp_path / "report.xml")


@pytest.mark.parametrize(
    ("test_id", "outcome", "expected"),
    [
        ("tests/test_a.py::TestB::test_c[x-1]", "passed", True),
        ("test_a.py::TestB::test_c[x-1]", "passed", True),
        ("../tests/test_a.py::TestB::test_c[x-1]", "passed", True),
        ("tests/test_a.py::TestB::test_c[x-2]", "passed", False),
        ("tests/test_a.py::test_d", "failed", True),
        ("tests/test_a.py::test_d", "passed", False),
        ("tests/test_a.py::test_e", "xfail", True),
        ("tests/test_a.py::test_f", "passed", False),
        ("tests/test_a.py::test_f", "error", True),
        ("tests/test_broken.py", "error", True),
    ],
)
def test_summary_and_report_have_to_agree(
    report: dict[tuple[str, str], str], test_id: str, outcome: str, expected: bool
) -> None:
    assert agrees(test_id, outcome, [{}, report]) is expected


def test_without_a_report_nothing_is_believed() -> None:
    assert not agrees("tests/test_a.py::test_d", "passed", [])


def test_characters_that_xml_cannot_have() -> None:
    assert case_name("t.py::test_a[\x1b::]") == ("t", "test_a[#x1B::]")


@pytest.mark.parametrize("content", ["", "<a", "<!DOCTYPE a [<!ENTITY b 'c'>]><testcase name='a'/>"])
def test_what_is_no_report_has_no_outcomes(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.xml").write_text(content)
    assert junit_outcomes(tmp_path / "report.xml") == {}
    (tmp_path / "link.xml").symlink_to("report.xml")
    assert junit_outcomes(tmp_path / "link.xml") == {}
