"""What builders and asynchronous sampling cost a trainer: the same tasks, model and machine, a few steps each.

    python benchmarks/ablation.py --config examples/learning/vllm.toml --model MODEL [--builders ...] \
        [--ahead 0 1] [--output FOLDER]
    python benchmarks/ablation.py --show FOLDER

Tasks are those of `families:step_by_step`: sixteen requests in one conversation, so at least sixteen calls a
session. A trainer that counts rows makes an update for every `--traces` traces. With `tree`, shared prefixes are
computed once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from polar.trainers.grpo.records import read_points

LEARNING = Path(__file__).parents[1] / "examples" / "learning"
CONFIG = """
output = "{output}"
[tasks]
train = "families:step_by_step"
groups = {groups}
samples = {samples}
fields = {{ builder = "{builder}" }}
[rollout]
ahead = {ahead}
[optimizer]
traces_per_update = {traces}
[compute]
share_prefixes = {share}
[schedule]
steps = {steps}
save_every = 1000
"""
MEANS = ("calls", "generation_busy")
SUMS = ("traces", "updates", "computed_tokens", "learn_s")
COLUMNS = ("builder", "ahead", "calls", "traces", "updates", "tokens", "trainer s", "wall s", "generation busy")


def run(chosen: argparse.Namespace, builder: str, ahead: int, folder: Path) -> list[str]:
    output = folder.absolute() / f"{builder}-{ahead}"
    share = "true" if builder == "tree" else "false"
    values = {**vars(chosen), "builder": builder, "ahead": ahead, "output": output, "share": share}
    file = LEARNING / f".ablation-{builder}-{ahead}.toml"  # beside the tasks' module
    file.write_text(CONFIG.format(**values))
    options = ["--config", str(chosen.config), "--workers", str(chosen.workers)]
    options += ["--model", chosen.model] if chosen.model else []
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", "train", str(file), *options]
    try:
        subprocess.run(command, check=True)
    finally:
        file.unlink()
    return row_of(output)


def row_of(output: Path) -> list[str]:
    builder, _, ahead = output.name.rpartition("-")
    points = [point.metrics for point in read_points(output)]
    total = {name: sum(point[name] for point in points) for name in SUMS}
    wall = sum(point["wait_s"] + point["learn_s"] + point["push_s"] for point in points)
    calls, busy = (sum(point.get(name, 0.0) for point in points) / len(points) for name in MEANS)
    counts = [f"{total[name]:.0f}" for name in SUMS[:3]]
    return [builder, ahead, f"{calls:.1f}", *counts, f"{total['learn_s']:.1f}", f"{wall:.1f}", f"{busy:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=Path, metavar="FOLDER", help="run nothing: the table of runs kept there")
    parser.add_argument("--config", type=Path, help="the polar.toml with the engine")
    parser.add_argument("--model", default="", help="the weights that it serves")
    parser.add_argument("--builders", nargs="+", default=["per_request", "prefix_merging", "tree"])
    parser.add_argument("--ahead", nargs="+", type=int, default=[0], help="0: synchronous")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--traces", type=int, default=16, help="traces for one update")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the folders of the runs stay; default: nowhere")
    chosen = parser.parse_args()
    if (chosen.show is None) == (chosen.config is None):
        parser.error("give either --config, to run, or --show")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    for row in rows(chosen):
        print("| " + " | ".join(row) + " |", flush=True)


def rows(chosen: argparse.Namespace) -> Iterator[list[str]]:
    if chosen.show is not None:
        yield from (row_of(folder) for folder in sorted(chosen.show.iterdir()))
        return
    with tempfile.TemporaryDirectory() as folder:
        for builder in chosen.builders:
            for ahead in chosen.ahead:
                yield run(chosen, builder, ahead, chosen.output or Path(folder))


if __name__ == "__main__":
    main()
