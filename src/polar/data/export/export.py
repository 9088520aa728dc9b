"""An export from its source to its files: one group in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from polar import __version__
from polar.data.export.atif import atif_documents
from polar.data.export.columns import COLUMNS, TOKEN_COLUMNS, parquet_rows
from polar.data.export.files import ExportFolder, JsonDocuments, JsonLines, RowWriter
from polar.data.export.jsonl import jsonl_rows
from polar.data.export.pairs import PAIR_TOKEN_COLUMNS, pair_rows
from polar.data.export.plan import ExportedGroup, ExportFormat, ExportPlan
from polar.data.export.selection import ChosenSession, LeftOut, choose
from polar.data.export.sft import sft_rows
from polar.data.export.tokens import token_rows
from polar.errors import ConfigError

NO_PYARROW = "parquet files need pyarrow: pip install 'polar-rollout[data]'"
PARQUET = "polar.data.export.parquet"

RowsOf = Callable[[ChosenSession, ExportPlan], Iterator[dict[str, Any]]]
FORMATS: dict[ExportFormat, RowsOf] = {
    "sft": sft_rows,
    "tokens": token_rows,
    "parquet": parquet_rows,
    "atif": atif_documents,
    "jsonl": jsonl_rows,
}


@dataclass
class ExportCounts:
    """What went in, and what did not."""

    sessions: int = 0
    """With at least one row."""
    traces: int = 0
    trained_tokens: int = 0
    rows: int = 0
    files: int = 0
    left_out: LeftOut = field(default_factory=LeftOut)

    def add(self, chosen: Sequence[ChosenSession]) -> None:
        self.sessions += len(chosen)
        self.traces += sum(len(session.traces) for session in chosen)
        self.trained_tokens += sum(item.trace.trainable_tokens for each in chosen for item in each.traces)

    def values(self) -> dict[str, Any]:
        reasons = {name: dict(+getattr(self.left_out, name)) for name in ("sessions", "traces", "pairs")}
        return {
            "sessions": self.sessions,
            "traces": self.traces,
            "trained_tokens": self.trained_tokens,
            "rows": self.rows,
            "files": self.files,
            "left_out": reasons,
            "problems": self.left_out.problems,
        }


async def export(
    groups: AsyncGenerator[ExportedGroup],
    plan: ExportPlan,
    folder: ExportFolder,
    about: Mapping[str, Any],
    on_group: Callable[[ExportedGroup], None] = lambda _: None,
) -> dict[str, Any]:
    """Writes the data set and returns its report. `about`: where the sessions come from, for the report."""
    counts = ExportCounts()
    with folder as place:
        writer = _writer(place, plan)
        try:
            async with aclosing(groups):
                async for group in groups:
                    _write(group, plan, writer, counts)
                    on_group(group)
        finally:
            counts.files = writer.close()
        report = {**about, "polar": __version__, "plan": plan.values(), **counts.values()}
        folder.commit(report)
    return report


def _write(group: ExportedGroup, plan: ExportPlan, writer: RowWriter, counts: ExportCounts) -> None:
    chosen = choose(group, plan, counts.left_out)
    counts.add(chosen)
    rows = (
        pair_rows(chosen, plan, counts.left_out)
        if plan.pairs
        else (row for session in chosen for row in FORMATS[plan.to](session, plan))
    )
    for row in rows:
        writer.write(row)
        counts.rows += 1


def _writer(folder: Path, plan: ExportPlan) -> RowWriter:
    if plan.to == "atif":
        return JsonDocuments(folder)
    shards: dict[str, Any] = {
        "shard_rows": plan.shard_rows,
        "shard_bytes": plan.shard_bytes,
        "split": plan.split,
    }
    if plan.to == "parquet":
        return _parquet(folder, COLUMNS, shards)
    if plan.file == "parquet":
        return _parquet(folder, PAIR_TOKEN_COLUMNS if plan.pairs else TOKEN_COLUMNS, shards)
    return JsonLines(folder, **shards)


def _parquet(folder: Path, columns: Sequence[str], shards: Mapping[str, Any]) -> RowWriter:
    try:
        module: Any = import_module(PARQUET)
    except ModuleNotFoundError as error:
        raise ConfigError(NO_PYARROW) from error
    return cast("RowWriter", module.ParquetRows(folder, columns, **shards))
