"""A small data set of one-step shell tasks for verl and SkyRL.

    python examples/trainers/rows.py FOLDER

writes `train.parquet` and `test.parquet`. What differs between tasks stands as JSON in the column `polar`, because
a column of a parquet file has one type for all rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLOURS = ("red", "green", "blue", "black", "white", "pink", "grey", "brown")
FILES = ("a.txt", "b.txt", "c.txt", "d.txt")
FOR_TEST = 4


def row(number: int, word: str, file: str) -> dict[str, Any]:
    evaluator = {"name": "test_on_output", "options": {"command": f"cat {file}", "expect_pattern": f"^{word}$"}}
    return {
        "prompt": [{"role": "user", "content": f"Write the word {word} into the file {file}."}],
        "polar": json.dumps({"evaluator": evaluator}),
        "data_source": "words",
        "agent_name": "polar",  # verl: the loop of agent_loops.yaml
        "env_class": "polar",  # SkyRL wants one
        "extra_info": {"index": number},
    }


def rows() -> list[dict[str, Any]]:
    pairs = [(word, file) for file in FILES for word in COLOURS]
    return [row(number, *pair) for number, pair in enumerate(pairs)]


def write(folder: Path) -> None:
    everything = rows()
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(everything[FOR_TEST:]), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(everything[:FOR_TEST]), folder / "test.parquet")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
