"""Parquet files, with pyarrow. Loaded by name (`export.py`), because pyarrow is an extra."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pyarrow
from pyarrow import parquet

from polar.data.export.files import Shards

arrow = cast("Any", pyarrow)
"""pyarrow has no types that a checker could use."""

BATCH_ROWS = 1_000
BATCH_VALUES = 1_000_000
"""Rows are held in memory until there are so many of them, or of the values in their lists."""

IDS = arrow.list_(arrow.int32())
FLOATS = arrow.list_(arrow.float32())
TEXTS = arrow.list_(arrow.string())
TYPES: dict[str, Any] = {
    "sample": arrow.int32(),
    "attempt": arrow.int32(),
    "trace": arrow.int32(),
    "reward": arrow.float64(),
    "chosen_reward": arrow.float64(),
    "rejected_reward": arrow.float64(),
    "advantage": arrow.float64(),
    "prompt_ids": IDS,
    "completion_ids": IDS,
    "input_ids": IDS,
    "labels": IDS,
    "chosen_ids": IDS,
    "chosen_labels": IDS,
    "rejected_ids": IDS,
    "rejected_labels": IDS,
    "mask": arrow.list_(arrow.int8()),
    "logprobs": FLOATS,
    "advantages": FLOATS,
    "policy_versions": TEXTS,
    "token_versions": IDS,
    "context_exact": arrow.bool_(),
}
"""By column; every other column is text."""


def schema_of(columns: Iterable[str]) -> Any:
    return arrow.schema([(name, TYPES.get(name, arrow.string())) for name in columns])


class ParquetRows:
    """Rows that all have the same columns."""

    def __init__(
        self, folder: Path, columns: Iterable[str], *, shard_rows: int, shard_bytes: int, split: str = "train"
    ) -> None:
        self._shards = Shards(folder, "parquet", split)
        self._schema = schema_of(columns)
        self._limits = (shard_rows, shard_bytes)
        self._writer: Any = None
        self._pending: list[dict[str, Any]] = []
        self._pending_values = self._rows = self._bytes = 0

    def write(self, row: dict[str, Any]) -> None:
        if self._rows + len(self._pending) >= self._limits[0]:
            self._end_file()
        self._pending.append(row)
        self._pending_values += sum(len(cast("list[Any]", value)) for value in row.values() if type(value) is list)
        if len(self._pending) >= BATCH_ROWS or self._pending_values >= BATCH_VALUES:
            self._flush()

    def close(self) -> int:
        """A data set without rows still has a file, which names its columns."""
        self._flush()
        if not self._shards.count:
            self._open()
        self._end_file()
        return self._shards.finish()

    def _flush(self) -> None:
        if not self._pending:
            return
        table = arrow.Table.from_pylist(self._pending, schema=self._schema)
        if self._bytes and self._bytes + table.nbytes > self._limits[1]:
            self._close_file()
        writer = self._writer or self._open()
        writer.write_table(table)
        self._rows += len(self._pending)
        self._bytes += table.nbytes
        self._pending, self._pending_values = [], 0

    def _open(self) -> Any:
        self._writer = cast("Any", parquet).ParquetWriter(self._shards.next(), self._schema, compression="zstd")
        return self._writer

    def _end_file(self) -> None:
        self._flush()
        self._close_file()

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._rows, self._bytes = None, 0, 0
