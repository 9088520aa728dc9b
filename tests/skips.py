"""What a run leaves out: which reasons count in CI, and the line at the end that names what was not run.

Tests of a package that no extra of `make check` installs are not collected where it is missing (`leave_out`), and
named too: `make trainers` and CI run those that can be installed apart.

A test that finds something missing skips and names it, so that `make test` is of use on any machine. CI installs
whatever can be installed, so there only one reason counts: the kernel does not have what the test is about.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import pytest

KERNEL = "the kernel cannot: "
KERNEL_CAN = Path(__file__).parent.parent / "scripts" / "kernel-can.sh"
LEFT_OUT = "left_out"
FILES_LEFT_OUT = "files_left_out"
WHY_LEFT_OUT = "that are long or need containers, PostgreSQL or six harnesses"
HOW_TO_RUN = "`make runtimes` installs what it can, `make check` runs them all."
HOW_TO_RUN_FILES = "`make trainers` runs those that need verl or verifiers."


def kernel_cannot(reason: str) -> NoReturn:
    """Skips the test, also in CI: no package can bring what is missing."""
    pytest.skip(KERNEL + reason)


def needs_kernel(reason: str) -> pytest.MarkDecorator:
    """The same as a mark; an empty reason skips nothing."""
    return pytest.mark.skipif(bool(reason), reason=KERNEL + reason)


def skip_without_runtime(name: str, missing: str) -> None:
    """Skips where a runtime says that something is missing. In CI only if the kernel cannot have it."""
    if not missing:
        return
    kernel = subprocess.run([KERNEL_CAN, name], capture_output=True, text=True, check=False)
    if kernel.returncode == 1:
        kernel_cannot(kernel.stdout.strip())
    pytest.skip(f"{name}: {missing}")


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


NOT_COLLECTED = pytest.StashKey[dict[str, str]]()
"""Files of tests, and the package that each lacks."""


def leave_out(config: pytest.Config, file: Path, package: str) -> None:
    """The last line names a file that is not collected because a package is missing."""
    config.stash.setdefault(NOT_COLLECTED, {})[file.name] = package


class Skips:
    """A plug-in of pytest: fails what CI may not skip, and counts the rest. Workers tell their controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left_out = 0
        self._files: dict[str, str] = config.stash.setdefault(NOT_COLLECTED, {})
        self._skipped: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        report: pytest.TestReport = yield
        if in_ci() and was_skipped(report) and not reason_of(report).startswith(KERNEL):
            report.longrepr = f"skipped in CI: {reason_of(report)}"
            report.outcome = "failed"
        return report

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        if self._config.option.markexpr:  # not what somebody leaves out by name
            self._left_out += sum(item.get_closest_marker("check") is not None for item in items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if was_skipped(report):
            self._skipped[reason_of(report)] += 1

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[LEFT_OUT] = self._left_out
            self._config.workeroutput[FILES_LEFT_OUT] = self._files

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", {})
        self._left_out = max(self._left_out, output.get(LEFT_OUT, 0))
        self._files.update(output.get(FILES_LEFT_OUT, {}))

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """After all else that is printed."""
        printer = config.pluginmanager.get_plugin("terminalreporter")
        if printer is not None and not hasattr(config, "workeroutput"):
            printer.write_line(self.summary())

    def summary(self) -> str:
        said = [f"{count} skipped ({reason})" for reason, count in self._skipped.most_common()]
        if self._left_out:
            said.insert(0, f"{self._left_out} tests {WHY_LEFT_OUT}")
        files = [f"{file} (needs {package})" for file, package in sorted(self._files.items())]
        if not said and not files:
            return "Every test of this selection was run."
        how = " ".join([HOW_TO_RUN] * bool(said) + [HOW_TO_RUN_FILES] * bool(files))
        return f"Not run: {'; '.join(said + files)}. {how}"


def was_skipped(report: pytest.TestReport) -> bool:
    return report.skipped and not hasattr(report, "wasxfail")


def reason_of(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())
