"""Runs in a process of its own: grades a log with the official `swebench` package.

Reads a JSON object from its standard input and writes one to its standard output. Imports nothing of Polar.
"""

import contextlib
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NOT_INSTALLED = 69


def open_package() -> None:
    """Makes `swebench.harness` importable without its own `__init__`, which takes seconds to import clients of
    Docker and Modal and libraries for data sets, and reads `.env` files. Grading uses none of that. Raises
    ModuleNotFoundError if the package is not installed."""
    package: Any = importlib.import_module("swebench")
    harness: Any = ModuleType("swebench.harness")
    harness.__path__ = [str(Path(folder, "harness")) for folder in package.__path__]
    sys.modules["swebench.harness"] = harness


def graded(order: dict[str, Any]) -> dict[str, Any]:
    types: Any = importlib.import_module("swebench.types")
    grading: Any = importlib.import_module("swebench.harness.grading")
    infra: Any = importlib.import_module("swebench.harness.infra_failure")
    row: dict[str, Any] = order["row"]
    if row["log_parser"] not in grading.PARSER_REGISTRY:
        known = ", ".join(sorted(grading.PARSER_REGISTRY))
        return {"problem": f"swebench has no log parser {row['log_parser']!r}; it has {known}"}
    spec = types.TestSpec(**row)
    name: str = row["instance_id"]
    prediction = {"instance_id": name, "model_name_or_path": "polar", "model_patch": order["patch"]}
    report: dict[str, Any] = grading.get_eval_report(spec, prediction, order["log"], True)[name]
    statuses: dict[str, str] = grading.get_logs_eval(spec, order["log"])[0]
    if not report["patch_successfully_applied"] and not report["infra_failure"]:
        found = infra.classify_text(Path(order["whole_log"]).read_text(errors="replace"))
        if found is not None:
            report |= {"infra_failure": found[1] == infra.TIER_ENVIRONMENT, "infra_failure_reason": found[0]}
    return {"report": report, "statuses": statuses}


def main() -> int:
    order = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            open_package()
        except ModuleNotFoundError:
            return NOT_INSTALLED
        answer = graded(order)
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
