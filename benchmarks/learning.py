"""What training runs came to: before and after, by family of tasks, from the files they left.

python benchmarks/learning.py benchmarks/results/learning/one-step-seed-0 ...   (folders of `polar train`)

With `--base eval.json`, a report of `polar eval` on the same tasks, named FAMILY-NUMBER, the table also has the
rates of the model before a warm start.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from polar.credit.pass_rates import wilson_interval
from polar.trainers.evaluation import EvalReport
from polar.trainers.grpo.records import read_points
from polar.types import TrainingPoint

ENDS = 10
"""Steps at the beginning and at the end that are averaged."""


class Tally(msgspec.Struct):
    sessions: int = 0
    solved: int = 0
    calls_of_solved: int = 0

    def add(self, row: dict[str, float | None]) -> None:
        solved = (row["reward"] or 0.0) >= 1.0
        self.sessions += 1
        self.solved += solved
        self.calls_of_solved += int(row["calls"] or 0) * solved

    def __str__(self) -> str:
        low, high = wilson_interval(self.solved, self.sessions)
        return f"{self.solved / self.sessions:.3f} ({low:.3f} to {high:.3f})"


def tallies(path: Path, groups: dict[str, Sequence[str]]) -> dict[str, Tally]:
    """Of an evaluation: by family, and of each group of families."""
    found = defaultdict[str, Tally](Tally)
    for line in path.read_text().splitlines():
        row = msgspec.json.decode(line)
        names = [row["family"], *(group for group, families in groups.items() if row["family"] in families)]
        for name in (*names, "all"):
            found[name].add(row)
    return dict(found)


def report_tallies(path: Path, groups: dict[str, Sequence[str]]) -> dict[str, Tally]:
    """Of a report of `polar eval`, likewise."""
    found = defaultdict[str, Tally](Tally)
    for task in EvalReport.model_validate_json(path.read_bytes()).variants[0].tasks:
        family = task.task.rpartition("-")[0]
        for name in (family, *(group for group, families in groups.items() if family in families), "all"):
            found[name].sessions += task.sessions
            found[name].solved += task.solved
    return dict(found)


def mean(points: Sequence[TrainingPoint], name: str) -> float:
    return sum(point.metrics[name] for point in points) / len(points)


def print_run(folder: Path, groups: dict[str, Sequence[str]], base: Path | None) -> None:
    steps = [point for point in read_points(folder) if point.phase == "train"]
    first, last = steps[:ENDS], steps[-ENDS:]
    seconds = sum(point.metrics["wait_s"] + point.metrics["learn_s"] + point.metrics["push_s"] for point in steps)
    sessions = sum(point.metrics["sessions"] for point in steps)
    print(f"\n## {folder.name}: {len(steps)} steps, {steps[-1].metrics['minutes']:.1f} minutes with evaluation\n")
    print(
        f"- reward: {mean(first, 'reward'):.3f} in the first {ENDS} steps, {mean(last, 'reward'):.3f} in the last"
    )
    print(f"- calls a session: {mean(first, 'calls'):.2f} first, {mean(last, 'calls'):.2f} last")
    print(f"- steps without any contrast: {sum(p.metrics['no_contrast'] == 1 for p in steps)} of {len(steps)};")
    print(
        f"  groups without contrast: {mean(first, 'no_contrast'):.0%} first, {mean(last, 'no_contrast'):.0%} last"
    )
    print(f"- captured against recomputed logprobs before the first update: {steps[0].metrics['gap']:.2g}")
    print(
        f"- {sessions:.0f} sessions, {sessions / seconds:.1f} a second; a step takes {seconds / len(steps):.1f} s,"
    )
    print(f"  of it {mean(steps, 'learn_s'):.1f} s training and {mean(steps, 'push_s'):.1f} s weight update")
    computed, whole = (
        sum(p.metrics["computed_tokens"] for p in steps),
        sum(p.metrics["trace_tokens"] for p in steps),
    )
    print(
        f"- tokens computed: {computed:.0f}, {computed / whole:.2f} of those in the traces: prefixes are shared\n"
    )
    print_rates(folder, groups, base)


def print_rates(folder: Path, groups: dict[str, Sequence[str]], base: Path | None) -> None:
    """Of the first and the last evaluation. A run that was cut off has only the first."""
    paths = sorted((folder / "evaluations").glob("*.sessions.jsonl"))
    if not paths:
        print("no evaluation")
        return
    found = {"pass@1 before": tallies(paths[0], groups)}
    if len(paths) > 1:
        found["after"] = tallies(paths[-1], groups)
    if base:
        found = {"base": report_tallies(base, groups)} | found
    *_, last = found.values()
    columns = ["held-out tasks", "sessions", *found, "calls if solved"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for name in sorted(last, key=lambda name: (name in groups, name == "all", name)):
        calls = f"{last[name].calls_of_solved / last[name].solved:.1f}" if last[name].solved else "–"
        rates = [str(rates[name]) for rates in found.values()]
        print("| " + " | ".join([name, str(last[name].sessions), *rates, calls]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=FAMILY,...",
        help="families that are also counted together",
    )
    parser.add_argument("--base", type=Path, help="the eval.json of the model before a warm start")
    chosen = parser.parse_args()
    groups = {name: families.split(",") for name, families in (each.split("=") for each in chosen.group)}
    for folder in chosen.runs:
        print_run(folder, groups, chosen.base)


if __name__ == "__main__":
    main()
