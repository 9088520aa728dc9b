"""`jsonl`: traces with all that is stored of them, as JSON.

Reading gives the same traces to the last bit: a float32 is written with the digits of its value as a double."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession
from polar.errors import PolarError
from polar.types import Span, Trace, logprobs, loss_mask, token_ids

LABELS = ("session_id", "task_id", "sample", "attempt", "kind", "reward", "context_exact", "failure")


class RowUnreadable(PolarError):
    """A line that is not a trace as `polar export --to jsonl` writes it."""


def jsonl_rows(chosen: ChosenSession, _: ExportPlan) -> Iterator[dict[str, Any]]:
    for item in chosen.traces:
        yield {
            **item.trace.to_row(),
            "spans": msgspec.to_builtins(item.trace.spans),
            "metadata": item.trace.metadata,
            "advantage": item.advantage,
            "advantages": None if item.advantages is None else item.advantages.tolist(),
        }


def trace_of(row: Mapping[str, Any]) -> Trace:
    """The trace of a row."""
    try:
        return Trace(
            **{name: row[name] for name in LABELS},
            group_id=row["group"],
            prompt_ids=token_ids(row["prompt_ids"]),
            response_ids=token_ids(row["completion_ids"]),
            loss_mask=loss_mask(row["mask"]),
            logprobs=logprobs(row["logprobs"]),
            spans=msgspec.convert(row["spans"], tuple[Span, ...]),
            metadata=row["metadata"],
        )
    except (KeyError, TypeError, ValueError, OverflowError, msgspec.ValidationError) as error:
        raise RowUnreadable(f"not a trace: {type(error).__name__}: {error}") from error


def read_traces(folder: Path) -> Iterator[Trace]:
    """The traces of an exported data set, in its order."""
    for path in sorted((folder / "data").glob("*.jsonl")):
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield trace_of(orjson.loads(line))
                except (orjson.JSONDecodeError, RowUnreadable) as error:
                    raise RowUnreadable(f"{path}:{number}: {error}") from error
