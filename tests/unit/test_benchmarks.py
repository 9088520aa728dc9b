"""The benchmark scripts run to their end. What they measure is not judged here."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from polar import registry
from polar.errors import RuntimeFailure
from polar.runtimes.base import SessionFolders
from polar.runtimes.local.runtime import LocalRuntime
from polar.tokens.renderers.smollm2 import SmolLM2Renderer

ROOT = Path(__file__).parent.parent.parent
SMALL = {
    "builders": ("--tokens", "600", "--calls", "3", "12", "--rounds", "1"),
    "gateway": (*("--only", "calls", "--rounds", "1", "--calls", "1"), *("--turns", "3", "--tokens", "600")),
    "gateway sessions": ("--only", "sessions", "--sessions", "2", "--turns", "3", "--contexts", "600", "1200"),
    "in flight": ("--sessions", "6"),
    "neighbours": ("--megabytes", "0.4", "--context", "8192"),
    "node": ("--at-once", "2", "--waves", "1", "--latency-s", "0.01"),
    "outage": ("--sessions", "6", "--outage-s", "8"),
    "peers": (
        *("--peers", "Polar", "relay", "--calls", "1", "--turns", "1", "3"),
        *("--sessions", "4", "--seconds", "0.5", "--replies", "10", "--no-claude-code"),
    ),
    "pipeline": ("--rounds", "1", "--sessions", "4", "--workload", "0.2 / 0.1 / 0.05"),
    "runtimes": ("--rounds", "1", "--parallel", "local=3"),
}
ROWS = {
    "builders": (
        "| chain, tree | 12 | 600 | 1.00 |",
        "| branches, prefix_merging | 12 |",
        "| chain, per_request | 3 |",
    ),
    "gateway": ("| gateway / relay that stores |", "of the gateway's: store", "tokens rendered per call"),
    "gateway sessions": ("| sessions at once | calls/s |", "| 2 |", "| 1200 |", "to 1200 tokens of context"),
    "in flight": ("| in flight | s until all are |", "| 6 |"),
    "neighbours": ("| 8192 | words | 0.4 | 400 |", "| 8192 | many tools | 0.4 |"),
    "node": ("| at once | sessions |", "| 2 | 2 |", "x bare at every size", "no fall-off"),
    "outage": ("6 results: 6 COMPLETED", "| engine | no connection to vLLM"),
    "peers": ("| turn 3, 1 an event, streamed |", "| calls/s, 4 sessions at once |", "after `kill -9`"),
    "pipeline": ("| 0.2 / 0.1 / 0.05 | 10 / 4 / 3 |",),
    "runtimes": ("| runtime | start, ms | listener, ms |", "| local | 3 |"),
}
SCRIPTS = {"gateway sessions": "gateway", "in flight": "in_flight"}
"""Of tables that are not named after theirs."""


LONG = ("gateway", "gateway sessions", "in flight", "node", "outage", "peers")
NAMES = [pytest.param(name, marks=pytest.mark.check) if name in LONG else name for name in SMALL]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_its_table_and_its_command(smollm2: SmolLM2Renderer, name: str) -> None:
    script = ROOT / "benchmarks" / f"{SCRIPTS.get(name, name)}.py"
    done = subprocess.run(
        [sys.executable, script, *SMALL[name]], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(row in done.stdout for row in ROWS[name])
    assert f"`python benchmarks/{script.name} --" in done.stdout


class Imageless(LocalRuntime):
    """Installed, but the image it starts from is not built."""

    async def start(self, place: SessionFolders) -> None:
        raise RuntimeFailure("there is no image 'polar-base'")


async def test_a_runtime_without_its_image_is_named_and_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    known = {"local": registry.BUILT_IN["runtime"]["local"], "imageless": f"{__name__}:Imageless"}
    monkeypatch.setitem(registry.BUILT_IN, "runtime", known)
    text = await importlib.import_module("runtimes").measure(1, {}, tmp_path)
    assert "| local |" in text and "| imageless |" not in text
    assert "Not measured here: imageless (there is no image 'polar-base')." in text


@pytest.mark.parametrize("name", SMALL)
def test_the_page_has_a_place_for_the_table(name: str) -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page.count(f"<!-- {name}: begin -->") == page.count(f"<!-- {name}: end -->") == 1


def fidelity(*flags: str) -> str:
    command = [sys.executable, ROOT / "benchmarks" / "fidelity.py", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_of(text: str) -> dict[str, dict[str, str]]:
    """The lines of a fidelity table by their cells, each by its columns."""
    lines = [
        [part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"
    ]
    head = next(number for number, line in enumerate(lines) if line[:2] == ["harness", "model"])
    rows = [dict(zip(lines[head], line, strict=True)) for line in lines[head + 2 :]]
    return {f"{row['harness']}/{row['model']}": row for row in rows}


def test_the_fidelity_page_has_a_row_for_each_cell() -> None:
    page = (ROOT / "docs" / "fidelity.md").read_text()
    made = page.split("<!-- fidelity: begin -->")[1].split("<!-- fidelity: end -->")[0]
    rows = rows_of(made)
    assert list(rows) == fidelity("--list").split()
    assert "Measured by `make fidelity` on" in made
    for name, row in rows.items():
        scored = name.rpartition("-")[2] in ("scored", "embedded", "vllm")
        assert (row["mean gap"] != "-") == scored, name


def test_a_cell_of_the_fidelity_table_is_a_real_harness_in_its_loop(smollm2: SmolLM2Renderer) -> None:
    out = fidelity("--cell", "pi/smollm2")
    row = rows_of(out)["pi/smollm2"]
    assert (row["calls"], row["traces"], row["merge rate"]) == ("5 agent", "1", "1.00 (4/4)")
    assert (row["breaks"], row["audit"], row["scored tokens"]) == ("none", "exact", "-")
    assert "Every target is met." in out
