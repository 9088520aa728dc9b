"""The benchmark scripts run to their end. What they measure is not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polar.tokens.smollm2 import SmolLM2Renderer

ROOT = Path(__file__).parent.parent.parent
SMALL = {
    "builders": ("--tokens", "600", "--calls", "3", "12", "--rounds", "1"),
    "gateway": ("--rounds", "1", "--calls", "1", "--turns", "3", "--tokens", "600"),
    "pipeline": ("--rounds", "1", "--sessions", "4", "--workload", "0.2 / 0.1 / 0.05"),
}
ROWS = {
    "builders": (
        "| chain, tree | 12 | 600 | 1.00 |",
        "| branches, prefix_merging | 12 |",
        "| chain, per_request | 3 |",
    ),
    "gateway": ("**gateway / relay that stores**", "of the gateway's: store", "tokens rendered per call"),
    "pipeline": ("| 0.2 / 0.1 / 0.05 | 10 / 4 / 3 |",),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_prints_its_table_and_its_command(smollm2: SmolLM2Renderer, name: str) -> None:
    script = ROOT / "benchmarks" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, script, *SMALL[name]], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(row in done.stdout for row in ROWS[name])
    assert f"`python benchmarks/{name}.py --" in done.stdout


@pytest.mark.parametrize("name", SMALL)
def test_the_page_has_a_place_for_the_table(name: str) -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.count(f"<!-- {name}: begin -->") == page.count(f"<!-- {name}: end -->") == 1
