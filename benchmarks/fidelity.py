"""Does every trainable token of a real harness stand where it was sampled? One row for each harness and model.

    python benchmarks/fidelity.py [--quick] [--cell pi/qwen3-scored ...] [--write]

Six harnesses, unmodified, each in a tool loop of five turns, on a model that follows a script:

- qwen3, smollm2: over that model's real tokenizer;
- qwen3-scored: the same, and each token gets the logprob that vLLM gives it behind the prompt that was sent: a
  tiny model of random weights with the real tokenizer, on the processor in float32.

And pi with SmolLM2 sampling freely, embedded and on vLLM. Each run is then put before `polar audit`. The script
ends with 1 when a cell misses a target. `--quick` takes one harness and no vLLM; `--write` puts the table into
docs/fidelity.md. The first run installs vLLM, 3.4 GB, and the harnesses, 1.6 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fidelity_cells import CELLS, REASONS, Cell, Row, Sampling
from fidelity_engines import serve_smollm2, serve_tiny_qwen3
from fidelity_run import Place
from page import origin, table, write_section

PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
HEAD = (
    *("harness", "model", "calls", "traces", "longest prompt", "merge rate", "breaks", "tolerated", "audit"),
    *("scored tokens", "mean gap", "max gap", "altered"),
)
SERVED = {"qwen3-scored": serve_tiny_qwen3, "smollm2-vllm": serve_smollm2}
QUICK = ("pi/qwen3", "pi/smollm2")


class Rows:
    """Rows by their cells, in a file where one is named: so a long measurement goes on where it was broken off."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        kept: list[dict[str, Any]] = json.loads(file.read_text()) if file and file.exists() else []
        self._rows = {row["cell"]: Row(**row) for row in kept}

    def __contains__(self, cell: Cell) -> bool:
        return cell.name in self._rows

    def add(self, row: Row) -> None:
        self._rows[row.cell] = row
        if self._file:
            self._file.write_text(json.dumps([asdict(row) for row in self._rows.values()], indent=1))

    def of(self, cells: Sequence[Cell]) -> list[Row]:
        return [self._rows[cell.name] for cell in cells]


async def measure(cells: Sequence[Cell], rows: Rows, folder: Path) -> None:
    todo = [cell for cell in cells if cell not in rows]
    for sampling in dict.fromkeys(cell.sampling for cell in todo):
        async with _place(sampling, folder) as place:
            for cell in (cell for cell in todo if cell.sampling == sampling):
                row = await place.run(cell)
                print(f"{cell.name}: {row.seconds} s{''.join(f'; {p}' for p in row.problems)}", flush=True)
                rows.add(row)


@asynccontextmanager
async def _place(sampling: Sampling, folder: Path) -> AsyncGenerator[Place]:
    async with AsyncExitStack() as stack:
        url = ""
        if sampling in SERVED:
            print(f"starting vLLM for {sampling}", flush=True)
            server = await stack.enter_async_context(SERVED[sampling](folder / f"{sampling}.log"))
            url = server.url
        yield Place(folder, url)


def cells_of(row: Row) -> list[str]:
    harness, model = row.cell.split("/")
    rate = f"{row.merged_pairs / row.append_only_pairs:.2f}" if row.append_only_pairs else "-"
    return [
        harness,
        model,
        counted(row.kinds),
        str(row.traces),
        str(row.prompt_tokens),
        f"{rate} ({row.merged_pairs}/{row.append_only_pairs})",
        counted(row.breaks) or "none",
        counted(row.tolerated) or "nothing",
        "exact" if not row.findings else f"{len(row.findings)} findings",
        str(row.scored_tokens) if row.scored_tokens else "-",
        *("-" if gap is None else f"{gap:.1e}" for gap in (row.mean_gap, row.max_gap, row.altered_gap)),
    ]


def counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def section(rows: Sequence[Row]) -> str:
    """The table, what broke in it and why, what it missed, and with which versions it was made."""
    broken = dict.fromkeys(reason for row in rows for reason in row.breaks)
    meanings = [f"- `{reason}`: {REASONS.get(reason, 'not a reason a harness can cause')}" for reason in broken]
    missed = [f"- {row.cell}: {problem}" for row in rows for problem in row.problems]
    versions = dict.fromkeys(version for row in rows for version in _versions(row))
    return "\n".join(
        [
            table(HEAD, [cells_of(row) for row in rows]),
            "",
            *(["Breaks:", "", *meanings] if meanings else ["No call broke off from the one before it."]),
            "",
            *(["Targets missed:", "", *missed] if missed else ["Every target is met."]),
            "",
            f"Versions: {', '.join(versions)}. {origin('make fidelity')}",
        ]
    )


def _versions(row: Row) -> list[str]:
    told = [
        row.versions.get("harness", ""),
        row.versions.get("engine", ""),
        f"Polar {row.versions.get('polar', '')}",
    ]
    return [version for version in told if version and version != "scripted"]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--cell", action="append", default=[], choices=[cell.name for cell in CELLS], help="a row")
    parser.add_argument("--list", action="store_true", help="print the names of all cells")
    parser.add_argument("--rows", type=Path, help="keep rows in this file; those it has are not measured again")
    parser.add_argument("--keep", type=Path, help="a folder for the runs, else they are removed")
    parser.add_argument("--write", action="store_true", help="put the table into the docs; only with all cells")
    options = parser.parse_args()
    if options.write and (options.quick or options.cell):
        parser.error("--write takes no part of the table")
    return options


async def main() -> None:
    options = parsed()
    if options.list:
        print("\n".join(cell.name for cell in CELLS))
        return
    names = QUICK if options.quick else options.cell
    cells = [cell for cell in CELLS if not names or cell.name in names]
    rows = Rows(options.rows)
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        await measure(cells, rows, folder)
    made = rows.of(cells)
    text = section(made)
    print(text)
    if options.write:
        write_section("fidelity", text, PAGE)
    if any(row.problems for row in made):
        raise SystemExit(1)


if __name__ == "__main__":
    asyncio.run(main())
