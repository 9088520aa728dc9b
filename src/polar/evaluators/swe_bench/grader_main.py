"""Runs in a process of its own: grades a log with the official `swebench` package, whose import takes seconds.

Reads a JSON object from its standard input and writes one to its standard output. Imports nothing of Polar.
"""

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

NOT_INSTALLED = 69


def graded(order: dict[str, Any]) -> dict[str, Any]:
    utils: Any = importlib.import_module("swebench.harness.utils")
    grading: Any = importlib.import_module("swebench.harness.grading")
    infra: Any = importlib.import_module("swebench.harness.infra_failure")
    parsers: Any = importlib.import_module("swebench.harness.log_parsers")
    row: dict[str, Any] = order["row"]
    if row["log_parser"] not in parsers.PARSER_REGISTRY:
        known = ", ".join(sorted(parsers.PARSER_REGISTRY))
        return {"problem": f"swebench has no log parser {row['log_parser']!r}; it has {known}"}
    spec = utils.make_test_spec(row)
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
            importlib.import_module("swebench")
        except ModuleNotFoundError:
            return NOT_INSTALLED
        answer = graded(order)
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
